"""The input of a build: sources of the ranks, their common schema, degrees."""
