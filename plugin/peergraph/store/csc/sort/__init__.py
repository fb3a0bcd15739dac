"""Sorts the edges of a relation by destination."""
