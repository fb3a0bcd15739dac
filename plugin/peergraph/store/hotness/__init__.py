"""How often nodes are read, and the renumbering by it."""
