"""Exact search for the rows of a table with the largest inner products."""
