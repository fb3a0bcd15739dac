"""Edge lists larger than memory, sorted into CSC."""
