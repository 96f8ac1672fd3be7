"""Published schedulers behind the port, one a file, to compare ours with."""
