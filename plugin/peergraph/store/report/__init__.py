"""Reports of a store: the memory that it takes, and the reads that were counted."""
