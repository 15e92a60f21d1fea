"""The commands of ``python -m deep_gemm_rocm``, a module each."""


class UsageError(Exception):
    """The command line asks for something impossible. The message says what is possible."""
