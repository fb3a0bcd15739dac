"""Ranks, timing and records: what all benchmarks run by."""
