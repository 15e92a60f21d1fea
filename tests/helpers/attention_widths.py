"""Pairs of head dimensions (queries and keys, values) that kernels support."""

WIDTHS = ((64, 64), (80, 80), (96, 96), (112, 112), (128, 128), (192, 192), (256, 256), (192, 128))
