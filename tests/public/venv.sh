# The Python of public scripts, for run.sh and images.sh, which read this from the clone's top.
packages="gymnasium six tensorboard matplotlib jsonargparse[signatures] trl==1.16.* sentence-transformers==6.2.* datasets evaluate pillow"

# torchvision's compiled operators are for the torch it was built with: where they cannot be loaded its Python asks
# for the names of two all the same. None of the scripts calls any.
mend_torchvision() { # SITE
    grep -q '"nms", "qnms"' "$1/torchvision/extension.py" || cat >>"$1/torchvision/extension.py" <<'END'

if not _has_ops():
    _names = torch.library.Library("torchvision", "DEF")
    for _name in ("nms", "qnms"):
        _names.define(f"{_name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
END
}

# The one of this machine: what is in .venv, and the rest.
make_venv() {
    venv=build/public/venv
    [ -x .venv/bin/python ] || { echo "$0: there is no .venv here; next: make setup" >&2; exit 1; }
    [ ! -e "$venv/.done" ] || return 0
    .venv/bin/python -m venv --without-pip --clear "$venv"
    site=$("$venv/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
    base=$(.venv/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
    printf 'import site; site.addsitedir("%s")\n' "$base" >"$site/base.pth"
    # The torch that is here stays.
    .venv/bin/python -c 'import torch; print(f"torch=={torch.__version__}")' >build/public/torch.txt
    # shellcheck disable=SC2086  # one word a package is meant
    "$venv/bin/python" -m pip install -q -c build/public/torch.txt --no-warn-script-location 'torchvision==0.28.*' $packages
    "$venv/bin/python" -c 'import torchvision' 2>/dev/null || mend_torchvision "$site"
    "$venv/bin/python" -c 'import torchvision'
    touch "$venv/.done"
}
