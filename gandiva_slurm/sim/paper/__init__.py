"""Published tables and figures, run again by our own engine and policies, beside the papers' numbers."""
