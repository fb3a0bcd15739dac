"""A graph of which each rank holds a block of nodes and their in-edges."""
