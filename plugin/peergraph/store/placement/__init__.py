"""Placement: which rows of structure and tables go to which tier, and what that takes of memory."""
