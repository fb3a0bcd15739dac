"""Tables that are trained: gradients, their way to the owners of rows, the updates."""
