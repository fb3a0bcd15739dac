"""A structure for torch.compile: operators look the edges up when the compiled code runs."""
