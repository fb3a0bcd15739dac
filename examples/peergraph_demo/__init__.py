"""Trains GraphSAGE on several ranks from one shared store: `peergraph demo`."""
