"""Random walks, and the PinSAGE neighbours that they find."""
