"""Launches of the chosen kernels: their argument structures, the tensors behind their pointers, and repeated calls."""
