"""A training and trials of it for submitit: a class with checkpoint(), which knows nothing of Gandiva.

    python submitted.py run NAME | trials NAME… | told JOB…

`run` submits one training, `trials` an array of them, and prints the jobs; `told` prints what submitit says
they have returned. A training ends where NAME.stop is, and returns how many mini-batches it has done.
"""

import os
import sys
import time

import submitit

FOLDER = "submitted"


class Training:
    def __init__(self, name, begin=0, weight=0.0):
        self.name, self.number, self.weight = name, begin, weight

    def __call__(self):
        import torch

        weight = torch.tensor([self.weight], requires_grad=True)
        optimizer = torch.optim.SGD([weight], lr=1.0)
        with open(self.name + ".out", "a", buffering=1) as out:
            while not os.path.exists(self.name + ".stop"):
                weight.grad = torch.ones(1)
                optimizer.step()
                print(os.environ.get("SLURM_RESTART_COUNT", 0), self.number, weight.item(), file=out)
                # One assignment: the handler of the signal runs between two.
                self.number, self.weight = self.number + 1, weight.item()
                time.sleep(0.02)
        return self.number

    def checkpoint(self):
        return submitit.helpers.DelayedSubmission(Training(self.name, self.number, self.weight))


def main(what, *words):
    if what == "told":
        print(*(submitit.SlurmJob(FOLDER, word).result() for word in words))
        return
    executor = submitit.AutoExecutor(FOLDER, cluster="slurm")
    flags = {
        "gandiva": True,
        "gandiva-checkpoint": "submitit",
        "gandiva-gpu-types": "v100",
        "gandiva-pack": "never",
    }
    executor.update_parameters(
        timeout_min=60,
        mem_gb=1,
        gpus_per_node=1,
        slurm_partition="gandiva",
        slurm_additional_parameters=flags,
    )
    trainings = [Training(name) for name in words]
    jobs = executor.submit_array(trainings) if what == "trials" else [executor.submit(trainings[0])]
    print(*(job.job_id for job in jobs))


if __name__ == "__main__":
    from submitted import main as pickled_by_name  # __main__ would be another module in the job

    pickled_by_name(*sys.argv[1:])
