#!/bin/sh
# Build the image of `gandiva mini --backend docker`, gandiva-mini:SUITE, unless it is there and up to date.
#
#   container/build.sh bookworm|trixie|forky
#
# The base is debian:SUITE-slim: pulled where an image registry is reachable, else made with debootstrap. What this
# machine needs to reach packages goes into the build: its own CA certificates, apt's proxies, pip's index.
set -eu
suite=${1:-}
case $suite in
    bookworm | trixie | forky) ;;
    *) echo "gandiva: no suite '$suite'; next: choose bookworm, trixie or forky" >&2; exit 2 ;;
esac
here=$(cd "$(dirname "$0")" && pwd)
clone=$(dirname "$here")
DOCKER_HOST=$(sh "$here/engine.sh" host)
export DOCKER_HOST
image=gandiva-mini:$suite
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

say() { echo "== $*" >&2; }

# forky's script came with newer debootstraps; every suite since is built as sid is.
base_script() { [ -e "/usr/share/debootstrap/scripts/$suite" ] && echo "$suite" || echo sid; }

# This machine's own Debian mirror; nothing (debootstrap's own choice) where it has none.
mirror() {
    apt-get indextargets --format '$(REPO_URI)' 'Created-By: Packages' 2>/dev/null |
        grep -m1 '/debian/$' || :
}

make_base() {
    if timeout 300 docker pull -q "debian:$suite-slim" >/dev/null 2>&1; then
        return
    fi
    if [ "$(id -u)" != 0 ] || ! command -v debootstrap >/dev/null; then
        echo "gandiva: debian:$suite-slim cannot be pulled, and making it takes root and debootstrap" >&2
        echo "gandiva: next: apt-get install debootstrap, and run this as root" >&2
        exit 1
    fi
    say "no image registry is reached: making debian:$suite-slim with debootstrap"
    # shellcheck disable=SC2046  # an empty mirror is no word
    debootstrap --variant=minbase --include=ca-certificates "$suite" "$work/root" $(mirror) \
        "/usr/share/debootstrap/scripts/$(base_script)" >"$work/debootstrap.log" 2>&1 || {
        tail -n 15 "$work/debootstrap.log" "$work/root/debootstrap/debootstrap.log" >&2
        exit 1
    }
    rm -rf "$work/root/var/cache/apt/archives" "$work/root/var/lib/apt/lists"
    tar -C "$work/root" -c . | docker import - "debian:$suite-slim" >/dev/null
    rm -rf "$work/root"
}

# Everything the image is made of, and nothing else.
make_context() {
    mkdir -p "$work/context/host/ca" "$work/context/package/gandiva_slurm"
    cp "$here/Dockerfile" "$here"/image/* "$work/context/"
    cp -r "$clone/spank" "$work/context/spank"
    rm -f "$work"/context/spank/*.so "$work"/context/spank/*.o
    # What pip asks of the package: its dependencies and commands, not how it is checked and tested.
    sed '/^\[tool\.ruff/,$d' "$clone/pyproject.toml" >"$work/context/package/pyproject.toml"
    : >"$work/context/package/README.md"
    find /usr/local/share/ca-certificates -name '*.crt' -exec cp {} "$work/context/host/ca/" \; 2>/dev/null || :
    host_settings
    chmod -R a+rX "$work/context"
    find "$work/context" -exec touch -h -d @0 {} +
}

host_settings() {
    apt-config dump 2>/dev/null | grep -iE '^Acquire::(https?::Proxy|Check-Valid-Until|Check-Date) ' \
        >"$work/context/host/apt.conf" || :
    index=$(python3 -m pip config get global.index-url 2>/dev/null) || index=${PIP_INDEX_URL:-}
    { echo '[global]'; [ -z "$index" ] || echo "index-url = $index"; } >"$work/context/host/pip.conf"
}

fingerprint() { (cd "$work/context" && find . -type f | LC_ALL=C sort | xargs sha256sum | sha256sum | cut -c1-16); }

# Where Python is 3.11, torch is pip's: a wheel of this machine's own (pip's find-links), else PyPI's, which brings
# gigabytes of CUDA. Only their names count for what the image is made of; the files follow when it is built.
own_wheels() {
    [ "$suite" = bookworm ] || return 0
    for place in $(python3 -m pip config get global.find-links 2>/dev/null) ${PIP_FIND_LINKS:-}; do
        find "$place" -maxdepth 1 -name 'torch-*cp311-*.whl' 2>/dev/null || :
    done | sort -u
}

mkdir -p "$work/context/wheels"
own_wheels | sed 's|.*/||' >"$work/context/wheels/names"
make_context
want=$(fingerprint)
# Two clusters that come up at once build once.
exec 9>"${TMPDIR:-/tmp}/gandiva-mini-$suite.lock"
flock 9
have=$(docker image inspect --format '{{index .Config.Labels "gandiva.context"}}' "$image" 2>/dev/null || :)
[ "$want" != "$have" ] || exit 0
docker image inspect "debian:$suite-slim" >/dev/null 2>&1 || make_base
say "building $image (minutes, until its packages are there)"
own_wheels | while read -r wheel; do cp "$wheel" "$work/context/wheels/"; done
# One builder on every engine: BuildKit is an extra package for some clients.
DOCKER_BUILDKIT=0 docker build --force-rm --network host --build-arg "SUITE=$suite" \
    --build-arg "TORCH=${TORCH:-torch==2.13.0}" --label "gandiva.context=$want" \
    -t "$image" "$work/context" >"$work/build.log" 2>&1 || {
    tail -n 40 "$work/build.log" >&2
    exit 1
}
