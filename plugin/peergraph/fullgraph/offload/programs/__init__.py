"""Recorded functions, compiled to programs that run chunk by chunk."""
