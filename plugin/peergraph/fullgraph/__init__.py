"""Exact training on a whole graph over several GPUs (MG-GCN, MGG)."""

__all__: list[str] = []
