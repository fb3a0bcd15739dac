"""How the compiled module is called: device, stream, blocks, and the errors that kernels find."""
