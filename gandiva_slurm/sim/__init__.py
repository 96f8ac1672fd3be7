"""The simulator: any policy of the port, in virtual time, on workloads of others."""
