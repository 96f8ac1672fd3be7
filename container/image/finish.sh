#!/bin/sh
# What the suite's PyTorch needs beside its packages.
set -eu
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
