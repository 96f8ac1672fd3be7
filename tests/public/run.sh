#!/bin/sh
# Public training scripts as they are, parked and moved: tests/public/run.sh DIR [WORDS…]; the table goes to stdout
# and to build/public/table.md, what was said of each to build/public/NN.told. DIR/OWNER/NAME are clones of the
# repositories of tests/public/scripts.py. Needs `make setup`, and a package index for what only these scripts need.
# 30 minutes on two cores; not part of make test.
set -eu
cd "$(dirname "$0")/../.."
venv=build/public/venv
[ -x .venv/bin/python ] || { echo "run.sh: there is no .venv here; next: make setup" >&2; exit 1; }
if [ ! -e "$venv/.done" ]; then
    .venv/bin/python -m venv --without-pip --clear "$venv"
    site=$("$venv/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
    base=$(.venv/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
    printf 'import site; site.addsitedir("%s")\n' "$base" >"$site/base.pth"
    # The torch that is here stays.
    .venv/bin/python -c 'import torch; print(f"torch=={torch.__version__}")' >build/public/torch.txt
    "$venv/bin/python" -m pip install -q -c build/public/torch.txt --no-warn-script-location \
        'torchvision==0.28.*' gymnasium six tensorboard 'jsonargparse[signatures]' \
        'trl==1.16.*' 'sentence-transformers==6.2.*' datasets evaluate pillow
    # torchvision's compiled operators are for the torch it was built with: where they cannot be loaded its Python
    # asks for the names of two all the same. None of the scripts calls any.
    "$venv/bin/python" -c 'import torchvision' 2>/dev/null || cat >>"$site/torchvision/extension.py" <<'END'

if not _has_ops():
    _names = torch.library.Library("torchvision", "DEF")
    for _name in ("nms", "qnms"):
        _names.define(f"{_name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
END
    "$venv/bin/python" -c 'import torchvision'
    touch "$venv/.done"
fi
exec "$venv/bin/python" -m tests.public.run "$@"
