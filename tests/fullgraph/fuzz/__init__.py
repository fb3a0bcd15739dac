"""Random programs on plain tensors and on full graphs: equal values, or an error with a name."""
