"""Rows of files, batch by batch."""
