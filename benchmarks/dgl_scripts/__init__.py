"""The trainings of accuracy_dgl.py."""
