"""Training scripts of the demo: small, real, and the same to the last bit each time they run."""
