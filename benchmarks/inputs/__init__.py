"""Graphs and arrays that are made on the device, the same everywhere."""
