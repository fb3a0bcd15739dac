"""Stores tables whose rows are spread over tiers, and reads and writes them."""
