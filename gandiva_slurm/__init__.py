"""Share GPUs between deep-learning training jobs on Slurm."""

__version__ = "0.1.0"
