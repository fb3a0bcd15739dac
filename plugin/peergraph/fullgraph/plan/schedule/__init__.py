"""Dry runs of a model on shapes: the passes of an epoch of offloaded training."""
