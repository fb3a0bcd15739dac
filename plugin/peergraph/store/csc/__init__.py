"""One relation's structure (CSC) in memory: layout, creation, reading."""
