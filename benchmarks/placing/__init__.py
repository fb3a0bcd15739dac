"""The parts of placement.py."""
