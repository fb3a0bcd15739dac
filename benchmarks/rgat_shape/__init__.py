"""The graph, the models and the measurements of rgat.py."""
