"""Known-wrong variants. The demonstration on a real cluster, which must turn red and say which check.

Each takes minutes: `.venv/bin/python -m tests.variants --only NAME`, as root.
"""

from __future__ import annotations

from tests.variant_kit import Variant

DEMO = ("{python}", ".venv/bin/gandiva", "mini", "demo")

VARIANTS = (
    Variant(
        "demo-run-park-tears-a-step",
        "gandiva_slurm/node/jobs.py:Resident.is_to_freeze",
        "return self.is_refusing or not self.has_client()",
        "return True",
        "Every job is stopped in mid-step at a quantum's end, as one without a client.",
        target="demo",
        command=DEMO,
        says="FAILED  parks off a boundary",
    ),
    Variant(
        "demo-run-share-off",
        "gandiva_slurm/slicing/local.py:LocalStride.charge",
        "work, overrun = held_ns * size, min(max(overrun_ns, 0), held_ns) * size",
        "work, overrun = held_ns * size * (6 if gang.user == 'user2' else 7) // 7, 0",
        "One user is charged six sevenths of what it held, and has a share that is ten per cent too big.",
        target="demo",
        command=DEMO,
        says="FAILED  GPU time over entitlement",
    ),
    Variant(
        "demo-run-loss-changed",
        "gandiva_slurm/client/stop.py:Stop._restore",
        "            self.tier.restore()\n",
        "            self.tier.restore()\n            __import__('torch').rand(1)\n",
        "A resumed training finds its random numbers one further on.",
        target="demo",
        command=DEMO,
        says="FAILED  losses",
    ),
    Variant(
        "demo-run-gpu-held-twice",
        "gandiva_slurm/node/slicer.py:Slicer._grant",
        "is_clear = self._is_ready(key) and node.is_free(resident.gpus, key)",
        "is_clear = self._is_ready(key)",
        "A GPU is granted while the job before still holds it.",
        target="demo",
        command=DEMO,
        says="FAILED  GPUs held twice",
    ),
    Variant(
        "demo-run-job-lost",
        "gandiva_slurm/controller/executor.py:Executor._do",
        "is_startable = is_current and",
        "is_startable = action.key.job_id != 4 and is_current and",
        "One job is placed and never started.",
        target="demo",
        command=DEMO,
        says="FAILED",
    ),
)
