"""Negative edges for link prediction."""
