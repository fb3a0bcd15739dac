"""Ranks of one machine that take themselves for ranks of several."""
