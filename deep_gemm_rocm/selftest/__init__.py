"""Checks of a machine: its matrix cores, every family of kernels, the cache and graphs."""
