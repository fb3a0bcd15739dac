"""Personalised PageRank, and the neighbours that it ranks first."""
