"""Rows of full graphs that are larger than GPU memory, chunk by chunk (HongTu)."""
