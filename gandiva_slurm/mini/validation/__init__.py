"""`gandiva mini validate`: one workload on a real mini cluster and in the simulator, side by side."""
