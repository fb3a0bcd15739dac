"""Loops over chunks: rows come and go beside the work on a chunk."""
