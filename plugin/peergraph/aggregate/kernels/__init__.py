"""The compiled module's kernels as operators of torch: no autograd, nothing checked."""
