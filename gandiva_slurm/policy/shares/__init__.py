"""Tickets from Slurm's associations, groups of turns, rounds by their passes."""
