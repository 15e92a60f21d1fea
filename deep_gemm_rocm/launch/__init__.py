"""Launches of the chosen kernels: argument structures, the tensors that they point to, and repeated calls."""
