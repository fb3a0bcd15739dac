"""A random database of ten tables: its rows, keys and times, and a model over its frames."""
