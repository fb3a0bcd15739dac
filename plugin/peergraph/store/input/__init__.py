"""What a store is built from: the graph as the ranks bring it, checked and counted together."""
