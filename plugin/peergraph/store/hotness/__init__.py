"""How often nodes are read, and the numbering that follows from it."""
