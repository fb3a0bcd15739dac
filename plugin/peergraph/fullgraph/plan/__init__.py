"""Bytes and times of a partitioned graph."""
