#!/bin/sh
# One stage of a day on a GPU machine: tests/gpu/day.sh A|B|C|D|E|F, at most nine minutes each, without network; A to D without Slurm.
#   A  does it work: what is there, copy rates, the price of pinning, same bits, what a park leaves, a busy park
#   B  two jobs too large for the card, and the tiers        C  sharing: layers, packs, a guaranteed job's pace, spill
#   D  slices of a minute                                   E  the whole on a mini cluster with this machine's GPUs, as root;
#      where no Slurm is installed, that of .wheels/slurm.tar.gz (tests/gpu/slurm.sh); GANDIVA_DAY_LOGS: where its logs go
#   F  frameworks and models: parked, what is left, the same losses; NVIDIA's MPS
# Figures go to $OUT (build/day without it): STAGE.jsonl, and STAGE.md for docs/measurements.md; with device, day, command.
# Packages that python3 lacks there: `tests/gpu/day.sh wheels` gathers them in .wheels, where there is a network, for
# Python 3.12; they are unpacked beside this tree's own. PYTHON names another interpreter.
# ONLY='EXPRESSION' runs that part of a stage, as pytest's -k has it.
# DEVICE=sim runs it on a simulated card (tests/device), in small, so that no minute there is lost to a slip (all but D).
set -eu
cd "$(dirname "$0")/../.."
stage=${1:-}
python=${PYTHON:-python3}
out=${OUT:-build/day}
wheels=.wheels
missing='pydantic==2.* pydantic-core annotated-types typing-inspection typing-extensions click ClusterShell
         nvidia-ml-py pytest-asyncio torch-memory-saver aiohttp aiohappyeyeballs aiosignal attrs frozenlist
         idna multidict propcache yarl PyYAML prometheus-client rich markdown-it-py mdurl pygments'

case $stage in
A) tests='tests/gpu/day/test_a.py tests/gpu/test_offload_gpu.py' except='not too_large' ;;
B) tests='tests/gpu/test_offload_gpu.py tests/gpu/test_tiers_gpu.py' except='too_large or graph or script or rank' ;;
C) tests='tests/gpu/test_layered_gpu.py tests/gpu/test_packing_gpu.py tests/gpu/test_sharing_gpu.py' except='not slicing' ;;
D) tests='tests/gpu/test_sharing_gpu.py' except='slicing' ;;
E) tests='tests/gpu/test_slurm_gpu.py' except='slurm' ;;
F) tests='tests/gpu/test_frameworks_gpu.py tests/gpu/test_mps_gpu.py' except='test' ;;
wheels)
    mkdir -p "$wheels"
    for name in $missing; do
        "$python" -m pip download -q --no-deps --only-binary=:all: --python-version 3.12 --implementation cp \
            --platform manylinux_2_28_x86_64 --platform manylinux_2_17_x86_64 --platform manylinux2014_x86_64 \
            -d "$wheels" "$name" || echo "day.sh: no wheel of $name; what needs it will be skipped there" >&2
    done
    ls "$wheels"
    exit 0 ;;
*)
    echo "usage: tests/gpu/day.sh A|B|C|D|E|F|wheels" >&2
    exit 2 ;;
esac

except=${ONLY:-$except}
mkdir -p "$out"
if [ "${DEVICE:-cuda}" = cuda ] && ls "$wheels"/*.whl >/dev/null 2>&1; then
    "$python" -m pip install -q --no-index --no-deps --no-compile --upgrade --target build/day-site "$wheels"/*.whl
    PYTHONPATH=$PWD/build/day-site:${PYTHONPATH:-}
fi
export PYTHONPATH=$PWD:${PYTHONPATH:-} GANDIVA_FIGURES=$out/$stage.jsonl PYTHONUNBUFFERED=1
export GANDIVA_FIGURES_OF="${DEVICE:+DEVICE=$DEVICE }tests/gpu/day.sh $stage${ONLY:+ (ONLY: $ONLY)}"
if [ "${DEVICE:-cuda}" = sim ]; then
    [ "$stage" != D ] || { echo "day.sh: turns of a minute on a simulated card show nothing: DEVICE=sim has A, B, C, E and F" >&2; exit 2; }
    sim=$(mktemp -d)
    trap 'rm -rf "$sim"' EXIT
    words=$("$python" -m tests.gpu.device "$sim/card")
    export $words
fi
if [ "$stage" = E ]; then
    command -v slurmctld >/dev/null || tests/gpu/slurm.sh unpack
    # A mini cluster's daemons are the commands beside its Python.
    [ -x "$(dirname "$python")/gandivad" ] || python=$("$python" -m tests.gpu.own_python build/day-venv build/day-site)
fi
rm -f "$GANDIVA_FIGURES"
rc=0
# Not the repository's own settings: the machine may lack its plugins.
timeout 540 "$python" -m pytest -q -s -rs -o addopts= -p no:cacheprovider --import-mode=importlib \
    --confcutdir=tests/gpu -k "$except" $tests || rc=$?
[ -s "$GANDIVA_FIGURES" ] || { echo "day.sh: stage $stage noted no figure" >&2; exit 1; }
"$python" -m tests.gpu.figures "$GANDIVA_FIGURES" | tee "$out/$stage.md"
[ "$rc" != 124 ] || echo "day.sh: stage $stage was ended after nine minutes: what is noted stands" >&2
exit "$rc"
