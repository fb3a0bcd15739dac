"""Gradients of programs, and their node of autograd."""
