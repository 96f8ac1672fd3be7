"""What the node shares with the engine: stride, turns, a node's quantum, rounds of gangs over nodes. Pure."""
