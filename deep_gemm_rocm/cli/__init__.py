"""What the commands of ``python -m deep_gemm_rocm`` do, a module each."""


class UsageError(Exception):
    """What was asked for on the command line can't be done; the message says what can."""
