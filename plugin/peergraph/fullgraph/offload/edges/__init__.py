"""Functions on edges, and sums over them."""
