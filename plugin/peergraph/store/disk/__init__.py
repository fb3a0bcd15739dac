"""Saved stores: writing, checking and reading their files."""
