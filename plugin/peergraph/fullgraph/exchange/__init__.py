"""How rows get to other ranks, and gradients back."""
