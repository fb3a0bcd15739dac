"""What is measured: Peergraph and its peers."""
