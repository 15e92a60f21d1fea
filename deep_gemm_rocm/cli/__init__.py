"""What the commands of ``python -m deep_gemm_rocm`` do, a module each."""
