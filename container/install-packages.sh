#!/bin/sh
# Install the Debian packages named as arguments, when one is missing. Says what it does. Only their programs are
# wanted: the services they bring are neither started nor enabled on this machine.
set -eu
missing=
for p in "$@"; do
    dpkg-query -W -f='${db:Status-Status}\n' "$p" 2>/dev/null | grep -qx installed || missing="$missing $p"
done
[ -z "$missing" ] && exit 0
if [ "$(id -u)" != 0 ]; then
    echo "gandiva: missing Debian packages:$missing" >&2
    echo "gandiva: next: run 'make setup' as root, or: sudo apt-get install --no-install-recommends$missing" >&2
    exit 1
fi
echo "== installing Debian packages:$missing"
export DEBIAN_FRONTEND=noninteractive
policy=/usr/sbin/policy-rc.d
if [ ! -e "$policy" ]; then
    trap 'rm -f "$policy"' EXIT
    printf '#!/bin/sh\nexit 101\n' >"$policy"
    chmod 755 "$policy"
fi
apt-get update -qq
# shellcheck disable=SC2086  # one word a package is meant
apt-get install -y -qq --no-install-recommends $missing >/dev/null
[ -d /run/systemd/system ] || exit 0
for p in $missing; do
    case $p in
        munge | slurmctld | slurmd | slurmdbd) systemctl --quiet disable "$p" ;;
        mariadb-server) systemctl --quiet disable mariadb ;;
    esac
done
