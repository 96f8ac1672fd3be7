#!/bin/sh
# Packages and accounts of the image. Daemons are started by whoever runs a container, never by their packages.
set -eu
suite=$1
printf '#!/bin/sh\nexit 101\n' >/usr/sbin/policy-rc.d
chmod 755 /usr/sbin/policy-rc.d
cp /tmp/host/apt.conf /etc/apt/apt.conf.d/90host
# As in Docker's own images of Debian: nothing is written to disk package by package, no documentation.
cat >/etc/dpkg/dpkg.cfg.d/image <<'END'
force-unsafe-io
path-exclude /usr/share/doc/*
path-exclude /usr/share/man/*
path-exclude /usr/share/locale/*
END
echo 'Acquire::Languages "none";' >/etc/apt/apt.conf.d/91image
if ls /tmp/host/ca/*.crt >/dev/null 2>&1; then
    mkdir -p /usr/local/share/ca-certificates
    cp /tmp/host/ca/*.crt /usr/local/share/ca-certificates/
fi

# Accounts first, with numbers of our choice: the same in every container and known outside. 64030 is Debian's for
# slurm.
groupadd -g 64030 slurm && useradd -u 64030 -g slurm -d /nonexistent -s /usr/sbin/nologin slurm
groupadd -g 64101 munge && useradd -u 64101 -g munge -d /nonexistent -s /usr/sbin/nologin munge
groupadd -g 64102 mysql && useradd -u 64102 -g mysql -d /nonexistent -s /usr/sbin/nologin mysql
for n in 1 2 3; do
    groupadd -g "500$n" "user$n" && useradd -u "500$n" -g "user$n" -M -d "/home/user$n" -s /bin/bash "user$n"
done

# A testing release whose lists were published long ago is still the one meant.
apt-get update -qq || apt-get update -qq -o Acquire::Check-Valid-Until=false -o Acquire::Check-Date=false
# bookworm's torch has no hook for all optimizers; there pip's is taken (venv.sh).
[ "$suite" = bookworm ] && torch='' || torch='python3-torch python3-numpy'
# The criu of bookworm, 3.17, fails on newer kernels.
[ "$suite" = bookworm ] && criu='' || criu=criu
# shellcheck disable=SC2086  # one word a package is meant
apt-get install -y -qq --no-install-recommends ca-certificates $torch \
    slurmctld slurmd slurmdbd slurm-client slurm-wlm-basic-plugins munge libmunge2 mariadb-server \
    python3 python3-venv iproute2 util-linux procps strace $criu >/dev/null
update-ca-certificates >/dev/null
rm -rf /var/lib/apt/lists/* /var/cache/apt/archives/*.deb /var/lib/mysql/*
