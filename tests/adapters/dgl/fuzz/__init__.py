"""Random message passing, queries and readouts of DGL, compared with DGL's own results."""
