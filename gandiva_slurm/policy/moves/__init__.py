"""When it pays to change GPUs: how long turns last, what a GPU type is worth to a job, exchanges."""
