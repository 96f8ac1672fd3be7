#!/bin/sh
# What this suite's Slurm needs beside its packages.
set -eu
suite=$1
# Debian's own torchrun is of a Python that does not see the venv, and Debian builds torch without libuv, which torch
# asks for unless told otherwise, and torchrun all the same. Every Python of the venv reads the .pth.
torch=/usr/lib/python3/dist-packages/torch/distributed
if [ -d "$torch" ]; then
    printf '#!/bin/sh\nexec /opt/gandiva/bin/python -m torch.distributed.run "$@"\n' >/opt/gandiva/bin/torchrun
    chmod 755 /opt/gandiva/bin/torchrun
    site=$(echo /opt/gandiva/lib/python3*/site-packages)
    echo 'import os; os.environ.setdefault("USE_LIBUV", "0")' >"$site/libuv.pth"
    sed -i 's/multi_tenant=True,/& use_libuv=False,/' "$torch"/elastic/rendezvous/*.py
    sed -i 's/is_master=False,/& use_libuv=False,/' "$torch/rendezvous.py"
fi

[ "$suite" = forky ] || exit 0
# forky's MariaDB client library (11.8.9) makes slurmdbd end when it starts: "Number of columns in result ... exceeds".
# slurmdbd alone gets trixie's (11.8.6); where forky has another library than that one, nothing is done.
case $(dpkg-query -W -f '${Version}' libmariadb3) in *11.8.9*) ;; *) exit 0 ;; esac
sources=$(grep -lrE '(^| )forky( |$)' /etc/apt/sources.list /etc/apt/sources.list.d 2>/dev/null | head -n 1)
case $sources in *.sources) old=/tmp/old.sources ;; *) old=/tmp/old.list ;; esac
sed 's/forky[^ ]*/trixie/g' "$sources" >"$old"
set -- -qq -o Dir::Etc::SourceList="$old" -o Dir::Etc::SourceParts=/nonexistent
cd /tmp
apt-get update "$@" || apt-get update "$@" -o Acquire::Check-Valid-Until=false -o Acquire::Check-Date=false
apt-get download "$@" libmariadb3/trixie
dpkg -x libmariadb3_*.deb /tmp/old
mkdir -p /opt/slurmdbd-libraries
cp -a "$(dirname "$(find /tmp/old -name 'libmariadb.so.3')")"/libmariadb.so* /opt/slurmdbd-libraries/
mv /usr/sbin/slurmdbd /usr/sbin/slurmdbd.real
printf '#!/bin/sh\nLD_LIBRARY_PATH=/opt/slurmdbd-libraries exec /usr/sbin/slurmdbd.real "$@"\n' >/usr/sbin/slurmdbd
chmod 755 /usr/sbin/slurmdbd
rm -rf /tmp/old* /tmp/libmariadb3_*.deb /var/lib/apt/lists/*
