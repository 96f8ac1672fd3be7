#!/bin/sh
# /opt/gandiva: a venv with our package's dependencies and its commands, over Debian's torch and numpy or with its own.
set -eu
suite=$1 torch=$2
export PIP_CONFIG_FILE=/tmp/host/pip.conf PIP_CERT=/etc/ssl/certs/ca-certificates.crt
export PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_CACHE_DIR=1 PIP_ROOT_USER_ACTION=ignore
python3 -m venv --system-site-packages /opt/gandiva
mkdir -p /opt/gandiva-slurm/gandiva_slurm
touch /opt/gandiva-slurm/gandiva_slurm/__init__.py
/opt/gandiva/bin/pip install --quiet -e /opt/gandiva-slurm
[ "$suite" != bookworm ] || /opt/gandiva/bin/pip install --quiet --find-links /tmp/wheels "$torch" numpy
