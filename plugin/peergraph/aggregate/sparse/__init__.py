"""The structure that aggregation runs over, its transpose, and numberings of it."""
