#!/bin/sh
# Install the Debian packages named as arguments, when one is missing. Says what it does and how long it took. Only
# their programs are wanted: the services they bring are neither started nor enabled on this machine.
#
# Exit 0: all are there. 3: some are missing, and this user or this system cannot install them. 1: installing failed.
# GANDIVA_APT_WAIT: seconds to wait for another process that holds apt's locks; 300 unless set.
set -eu
wait_s=${GANDIVA_APT_WAIT:-300}

die() { # CODE SENTENCE NEXT
    echo "gandiva: $2" >&2
    echo "gandiva: next: $3" >&2
    exit "$1"
}

command -v apt-get >/dev/null && command -v dpkg-query >/dev/null ||
    die 3 "packages: this is no Debian (no apt-get), and these Debian packages cannot be installed here: $*" \
        "install their like by this system's own means; what needs them (Slurm, the plugin) does not run without"
there=$(dpkg-query -W -f='${Package} ${db:Status-Status}\n' "$@" 2>/dev/null | sed -n 's/ installed$//p') || :
missing=
for p in "$@"; do
    echo "$there" | grep -qxF "$p" || missing="$missing $p"
done
[ -n "$missing" ] || exit 0
[ "$(id -u)" = 0 ] ||
    die 3 "packages: missing, and only root installs Debian packages:$missing" \
        "run 'make setup' as root, or: sudo apt-get install --no-install-recommends$missing"

echo "== packages: installing$missing"
began=$(date +%s)
log=$(mktemp)
policy=/usr/sbin/policy-rc.d
own_policy="# gandiva: while its packages are installed"
# A signal ends the shell without its EXIT trap, and the policy would keep every later service from starting.
trap 'rm -f "$log"; ! grep -qxF "$own_policy" "$policy" 2>/dev/null || rm -f "$policy"' EXIT
trap 'echo "gandiva: stopped while installing packages; next: make setup goes on from here" >&2; exit 130' INT TERM HUP
export DEBIAN_FRONTEND=noninteractive LC_ALL=C.UTF-8
[ -e "$policy" ] || { printf '#!/bin/sh\n%s\nexit 101\n' "$own_policy" >"$policy" && chmod 755 "$policy"; }

# One line of apt's: "Could not get lock PATH. It is held by process PID (NAME)", or what follows from it.
locked() { grep -E -m1 'Could not get lock|Unable to (lock|acquire the dpkg frontend lock)' "$log"; }

# Run apt's command; while another process holds a lock, again every two seconds until the bound.
apt_do() {
    told=
    mended=
    deadline=$(($(date +%s) + wait_s))
    while ! "$@" >"$log" 2>&1; do
        if locked >/dev/null; then
            [ "$(date +%s)" -lt "$deadline" ] || return 1
            [ -n "$told" ] || echo "   packages: waiting at most $wait_s s for apt's lock: $(locked)"
            told=yes
            sleep 2
        elif grep -q 'dpkg was interrupted' "$log" && [ -z "$mended" ]; then
            echo "   packages: finishing what an interrupted dpkg left"
            mended=yes
            dpkg --configure -a >"$log" 2>&1 || return 1
        else
            return 1
        fi
    done
}

explain() { # What apt's log says, as a sentence.
    tail -n 8 "$log" >&2
    if locked >/dev/null; then
        die 1 "packages: another process still holds apt's lock after $wait_s s: $(locked)" \
            "let it end (an upgrade in the background, most often), then make setup again"
    elif grep -qE 'enough free space|No space left on device' "$log"; then
        die 1 "packages: too little space for them: $(df -Ph /var/cache/apt / | awk 'NR > 1 {print $6, "has", $4}' | sort -u | paste -sd,)" \
            "make room (apt-get clean empties apt's own store), then make setup again"
    elif grep -qE 'resolve|[Cc]onnect|Failed to fetch|Err:|timed out|Unable to locate|no installation candidate' "$log"; then
        die 1 "packages: apt does not reach its package lists, or they lack a package: $(grep -E -m1 '^[EW]:' "$log")" \
            "check the network and /etc/apt (sources.list, a proxy), try 'apt-get update', then make setup again"
    fi
    die 1 "packages: apt-get failed; its last lines are above" "mend what they name, then make setup again"
}

apt_do apt-get update -qq || explain
# shellcheck disable=SC2086  # one word a package is meant
apt_do apt-get install -y -qq --no-install-recommends $missing || explain
echo "   packages: $(($(date +%s) - began)) s"
[ -d /run/systemd/system ] || exit 0
for p in $missing; do
    case $p in
        munge | slurmctld | slurmd | slurmdbd) systemctl --quiet disable "$p" ;;
        mariadb-server) systemctl --quiet disable mariadb ;;
    esac
done
