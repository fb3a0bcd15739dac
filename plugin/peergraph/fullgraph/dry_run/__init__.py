"""Runs models on small graphs, to see what an epoch on a large graph will read, write and hold."""
