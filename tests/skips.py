"""Why a test may be skipped: reasons that CI accepts, for they name what the machine itself lacks."""

NO_GPU = "no CUDA GPU on this machine"
#: pyslurm fits one release of Slurm, which Debian 12 does not have; it is live in the containers of forky.
NO_PYSLURM = "Python has no pyslurm there: docs/pyslurm.md tells how to build it for this Slurm"
#: What container/engine.sh says where none runs; .ci/run starts one wherever that is possible.
NO_ENGINE = "no Docker engine answers here"
#: CI runs as root, so that there it is an unexpected one.
NO_ROOT = "the node floor runs tasks as other users, which needs root: run it as root (sudo)"
NO_V1_DEVICES = "this machine has no control groups of version 1 for devices"
NO_NVML = "NVML or nvidia-ml-py is not here: pip install gandiva-slurm[nvml]"
#: Of tests that run on the simulated card as well.
ONLY_CUDA = "the simulated card has none of it: only CUDA shows it"
NO_CHROMIUM = "no Chromium on this machine: apt install chromium"
NO_PROMTOOL = "no promtool on this machine: apt install prometheus"
NO_JWT = "this Slurm has no auth/jwt: apt install slurm-wlm-jwt-plugin"
NO_SAVER = "torch_memory_saver is not installed"
NO_MPS = "NVIDIA's Multi-Process Service does not start here"
NO_JAX = "jax and optax are not installed"
NO_DEEPSPEED = "deepspeed is not installed"
#: Why, tests/device/build.py says behind these.
NO_COMPILER = "no C++ can be compiled against this PyTorch here"
NO_CARD = "the simulated card cannot be built here"
NO_PROCESS_CHECKPOINT = "NVIDIA's process checkpoint does not work on this machine"
#: NVML numbers processes as the machine does, not as a container.
OTHER_PIDS = "this process has another number in NVML's eyes"
#: Skips that count as skips on any machine, whatever is required of it.
ALWAYS = (ONLY_CUDA, NO_PROCESS_CHECKPOINT, OTHER_PIDS, NO_V1_DEVICES)
#: By the floor whose naming in GANDIVA_REQUIRE makes them a failure.
BY_FLOOR = {
    "gpu": NO_GPU,
    "nvml": NO_NVML,
    "vmm": NO_SAVER,
    "pyslurm": NO_PYSLURM,
    "docker": NO_ENGINE,
    "card": NO_CARD,
    "chromium": NO_CHROMIUM,
    "promtool": NO_PROMTOOL,
    "jax": NO_JAX,
    "deepspeed": NO_DEEPSPEED,
}
