"""Where a gang goes: eligible nodes, free GPUs, homes, seats."""
