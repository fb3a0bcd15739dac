"""Tables of nodes and edges: rows of columns, and the files that they are written to."""
