"""Parts of `offload.py`."""
