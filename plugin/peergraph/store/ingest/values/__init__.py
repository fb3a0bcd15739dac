"""Columns as ids and as rows of tables."""
