"""Run a workload of known run times on like GPUs, without costs, and tell what came out.

    python tests/oracles/homogeneous.py --workload FILE --gpus N --policy fifo|srtf|srsf

FILE is in ElasticFlow's format. Gangs may lie on several nodes at full speed. Prints one JSON line with
avg_jct_s and makespan_s; ends with 1 if an invariant broke on the way or a job did not end.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from gandiva_slurm.model.errors import GandivaError
from gandiva_slurm.policy.port import PolicySettings
from gandiva_slurm.policy.registry import make_policy
from gandiva_slurm.sim.clusters import read_cluster
from gandiva_slurm.sim.run import Scene, simulate
from gandiva_slurm.sim.workloads.load import Source, load


def main() -> int:
    """Run it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--workload", type=Path, required=True)
    parser.add_argument("--gpus", type=int, required=True)
    parser.add_argument("--policy", choices=("fifo", "srtf", "srsf"), required=True)
    args = parser.parse_args()
    try:
        cluster = read_cluster(f"gpu:1x{args.gpus}")
        specs, truth = load(Source(args.workload, "elasticflow"), cluster)
        policy, _ = make_policy(args.policy, PolicySettings(60 * 10**9))
        result = simulate(Scene(specs, cluster, truth, is_checked=True), policy).summary()
    except GandivaError as err:
        print(json.dumps({"policy": args.policy, "error": str(err)}))
        return 1
    names = ("policy", "jobs", "finished", "avg_jct_s", "makespan_s")
    print(json.dumps({"workload": args.workload.name, "gpus": args.gpus} | {n: result[n] for n in names}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
