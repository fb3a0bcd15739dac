"""Placement: chooses the tier of each row of structure and tables, and computes the memory."""
