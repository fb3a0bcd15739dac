"""Every operator that torch's own tests describe, on rows of full graphs and on plain tensors."""
