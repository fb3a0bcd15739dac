"""The node group: the ranks of one host, and what they do together."""
