"""DGL graphs whose nodes and edges are partitioned over the ranks, for full-graph training."""
