"""Slow, obvious twins of the core's operations: what they are tested and measured against."""
