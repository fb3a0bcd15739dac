"""Stores on disk."""
