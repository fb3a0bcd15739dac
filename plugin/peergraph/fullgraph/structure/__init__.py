"""Edges partitioned by destination."""
