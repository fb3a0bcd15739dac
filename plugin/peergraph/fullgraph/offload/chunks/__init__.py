"""How rows and edges are cut in chunks, and which source rows move for each batch of chunks."""
