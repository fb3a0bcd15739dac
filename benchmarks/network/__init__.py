"""What several machines send each other for mini-batches: parts of network_bytes.py."""
