"""Parts of fullgraph_curves.py."""
