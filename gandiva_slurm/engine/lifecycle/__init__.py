"""A job's way through its states: news, starts, moves, limits, fences."""
