"""Regions: memory of each rank that all of them map, and how much there is to take."""
