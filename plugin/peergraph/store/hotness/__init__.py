"""Finds how often nodes are read, and renumbers nodes by it."""
