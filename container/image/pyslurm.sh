#!/bin/sh
# What needs a compiler: the tools for the SPANK plugin; on forky also pyslurm from PyPI, into /built.
#
# pyslurm's versions are Slurm's, and none is published for 26.05: 25.11 is told that the headers are its own, and
# what Slurm renamed since is named for it. docs/pyslurm.md has the matrix.
set -eu
suite=$1
release=25.11.2
mkdir -p /built
apt-get update -qq || apt-get update -qq -o Acquire::Check-Valid-Until=false -o Acquire::Check-Date=false
apt-get install -y -qq --no-install-recommends gcc libc6-dev make libslurm-dev >/dev/null
[ "$suite" = forky ] || exit 0
apt-get install -y -qq --no-install-recommends python3-dev >/dev/null

export PIP_CONFIG_FILE=/tmp/host/pip.conf PIP_CERT=/etc/ssl/certs/ca-certificates.crt
export PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_CACHE_DIR=1 PIP_ROOT_USER_ACTION=ignore
headers=/tmp/slurm-headers
mkdir -p "$headers"
cp -r /usr/include/slurm "$headers/"
sed -i 's/^\(#define SLURM_VERSION_NUMBER\) .*/\1 0x190b00/' "$headers/slurm/slurm_version.h"
export SLURM_INCLUDE_DIR=$headers SLURM_LIB_DIR="/usr/lib/$(gcc -print-multiarch)"
export PYSLURM_BUILD_JOBS=2
export CFLAGS="-O1 -g0 -DSLURM_BACKWARD_COMPAT -Dslurm_free_ctl_conf=slurm_free_conf \
-DESLURM_ERROR_ON_DESC_TO_RECORD_COPY=9999"

python3 -m venv /tmp/builder
/tmp/builder/bin/pip install --quiet 'setuptools>=77' wheel 'Cython>=3' packaging
/tmp/builder/bin/pip download --quiet --no-deps --no-binary pyslurm --no-build-isolation -d /tmp "pyslurm==$release"
tar -C /tmp -xzf "/tmp/pyslurm-$release.tar.gz"
cd "/tmp/pyslurm-$release"
# A field that 26.05 put in the middle of job_resources; without it pyslurm reads the wrong memory.
sed -i 's/^\( *\)bitstr_t \*node_bitmap$/&\n\1uint32_t *node_ranks/' pyslurm/slurm/extra.pxi
[ "$(grep -c 'uint32_t \*node_ranks' pyslurm/slurm/extra.pxi)" = 1 ]
printf '[build_ext]\nparallel = 2\n' >>setup.cfg
/tmp/builder/bin/pip wheel --quiet --no-deps --no-build-isolation -w /tmp/wheels .
/tmp/builder/bin/pip install --quiet --no-deps --root /built --prefix /opt/gandiva /tmp/wheels/*.whl
