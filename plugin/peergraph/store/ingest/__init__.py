"""Stores made from files of other formats, in bounded memory."""
