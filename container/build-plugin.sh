#!/bin/sh
# Build the SPANK plugin spank/gandiva.so, unless it is up to date. Where Slurm's header, the compiler or make is
# missing, say that it is not built, and why: all that needs no Slurm works without.
set -eu
spank=$(cd "$(dirname "$0")/../spank" && pwd)
cc=${CC:-cc}
missing=
command -v "$cc" >/dev/null || missing="$missing $cc"
echo '#include <slurm/spank.h>' | "$cc" -E -x c - >/dev/null 2>&1 || missing="$missing slurm/spank.h"
if [ -n "$missing" ]; then
    echo "gandiva: plugin: spank/gandiva.so is not built, for these are missing:$missing" >&2
    echo "gandiva: next: as root, apt-get install gcc libc6-dev libslurm-dev (or their like), then make setup again" >&2
    exit 3
fi
# What is up to date is asked with the jobs of a make above us left out.
unset MAKEFLAGS MFLAGS
! make -q -C "$spank" >/dev/null 2>&1 || exit 0
echo "== plugin: building spank/gandiva.so"
began=$(date +%s)
make -s --no-print-directory -C "$spank" CC="$cc"
echo "   plugin: $(($(date +%s) - began)) s"
