"""Two jobs on one GPU: pairs, classes, memory, duty."""
