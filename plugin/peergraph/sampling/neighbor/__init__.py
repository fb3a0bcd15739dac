"""Uniform, weighted and temporal k-hop neighbour sampling."""
