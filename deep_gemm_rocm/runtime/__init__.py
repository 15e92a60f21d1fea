"""The HIP runtime, real or simulated, with its memory, streams and graphs."""
