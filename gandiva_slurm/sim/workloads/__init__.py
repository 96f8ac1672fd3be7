"""Workloads of others, one format a file: rows of a file → jobs, or a sentence that names the row."""
