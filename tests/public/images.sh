#!/bin/sh
# Public training scripts as they are, moved twice by images of their processes between two nodes of a mini cluster in
# containers: tests/public/images.sh SUITE DIR [WORDS…], SUITE trixie or forky, the rest as for run.sh; the table goes to
# stdout and to build/public/SUITE/table.md. Needs `make image SUITE=…`, and a package index. An hour on two cores.
set -eu
cd "$(dirname "$0")/../.."
. tests/public/venv.sh
case ${1:-} in
    trixie) torchvision=0.21.0 ;; # for the suite's own torch
    forky) torchvision=0.29.1 ;;
    *) echo "usage: tests/public/images.sh trixie|forky DIR [WORDS…]" >&2; exit 2 ;;
esac
make_venv
place=$PWD/build/public/$1
DOCKER_HOST=$(sh container/engine.sh host)
export DOCKER_HOST
if [ ! -e "$place/venv/.done" ]; then
    mkdir -p "$place"
    docker run --rm --network host -v "$place:$place" -e PIP_CERT=/etc/ssl/certs/ca-certificates.crt \
        -e PIP_CONFIG_FILE=/tmp/host/pip.conf -e PIP_ROOT_USER_ACTION=ignore "gandiva-mini:$1" sh -c \
        "python3 -m venv --system-site-packages $place/venv && $place/venv/bin/pip install -q torchvision==$torchvision lightning $packages"
    mend_torchvision "$(echo "$place"/venv/lib/python3*/site-packages)"
    touch "$place/venv/.done"
fi
exec build/public/venv/bin/python -m tests.public.images "$@"
