"""The benchmark suite, for hardware and the timing model alike: ``python -m deep_gemm_rocm bench``."""
