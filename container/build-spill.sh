#!/bin/sh
# Build gandiva_slurm/client/libspill.so, by which opportunistic jobs go on in host memory (node.spill_mib), unless it is
# up to date. Where there is no C compiler, say so: without it such a job ends where its part of the GPU is full.
set -eu
client=$(cd "$(dirname "$0")/../gandiva_slurm/client" && pwd)
made=$client/libspill.so
cc=${CC:-cc}
# Python would import a library of this name, as it once was, in the place of spill.py.
rm -f "$client/spill.so"
if [ -e "$made" ] && [ -z "$(find "$client/spill.c" -newer "$made")" ]; then
    exit 0
fi
if ! command -v "$cc" >/dev/null; then
    echo "gandiva: spill: gandiva_slurm/client/libspill.so is not built, for $cc is missing" >&2
    echo "gandiva: next: as root, apt-get install gcc libc6-dev (or their like), then make spill" >&2
    exit 3
fi
echo "== spill: building gandiva_slurm/client/libspill.so"
began=$(date +%s)
"$cc" -std=gnu11 -Wall -Wextra -Werror -O2 -fPIC -shared -Wl,-z,relro,-z,now -o "$made.new" "$client/spill.c"
mv -f "$made.new" "$made"
echo "   spill: $(($(date +%s) - began)) s"
