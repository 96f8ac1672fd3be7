"""What the engine remembers, and its JSON form."""
