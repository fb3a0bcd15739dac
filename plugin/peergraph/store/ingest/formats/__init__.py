"""Datasets of OGB, LSC, DGL and PyG as descriptions of files."""
