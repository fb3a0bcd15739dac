"""GraphSAINT: subgraphs of random nodes, edges or walks, and their normalisation."""
