"""gandivad, one a node: it shares the node's GPUs among the resident gangs, quantum by quantum."""
