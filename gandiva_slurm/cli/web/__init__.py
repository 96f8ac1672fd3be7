"""`gandiva web`: a JSON API and a page, by a process of its own."""
