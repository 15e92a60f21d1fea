"""Settings of this process, under DeepGEMM's names."""

from __future__ import annotations

from ..checks import check_bool, check_int
from ..runtime import session, settings

# Tiles have a multiple of 16 rows, and with contiguous layouts each tile lies in one group.
_ALIGNMENTS = (16, 32, 64, 128)


def set_mk_alignment_for_contiguous_layout(new_value: int) -> None:
    """Sets the alignment of contiguous layouts: each group's first row is a multiple of it.

    A smaller alignment wastes fewer padding rows in small groups, but also limits the rows of a tile.

    Raises:
        TypeError, ValueError: ``new_value`` is not 16, 32, 64 or 128.
    """
    if check_int("new_value", new_value, 0) not in _ALIGNMENTS:
        raise ValueError(f"the alignment of contiguous layouts must be one of {_ALIGNMENTS}, got {new_value}")
    settings.change(alignment=new_value)


def get_mk_alignment_for_contiguous_layout() -> int:
    """The alignment of contiguous layouts, of which each group's first row is a multiple; 128 by default."""
    return settings.values().alignment


# DeepGEMM's other names.
get_k_alignment_for_contiguous_layout = get_mk_alignment_for_contiguous_layout
get_m_alignment_for_contiguous_layout = get_mk_alignment_for_contiguous_layout


def get_theoretical_mk_alignment_for_contiguous_layout(
    expected_m: int | None = None, num_groups: int | None = None
) -> int:
    """The alignment for groups of about ``expected_m`` rows, or of that many in ``num_groups`` groups together.

    As in DeepGEMM on SM90 it is 128 for all: serving stacks quantise activations in blocks of 128 rows. A program that
    wants less padding in small groups may set a smaller alignment by ``set_mk_alignment_for_contiguous_layout``.

    Returns:
        128.

    Raises:
        TypeError, ValueError: an argument is neither None nor a positive int.
    """
    for name, value in (("expected_m", expected_m), ("num_groups", num_groups)):
        if value is not None:
            check_int(name, value, 1)
    return _ALIGNMENTS[-1]


def set_num_sms(new_num_sms: int) -> None:
    """Sets how many of the device's compute units (SMs, in DeepGEMM's words) a GEMM may occupy at most; 0 for all.

    Kernels are then persistent, with one workgroup for each of these compute units.

    Raises:
        TypeError, ValueError: ``new_num_sms`` is not an int from 0 to the number that the device has.
        hip.NoDeviceError: there is no device.
    """
    most = session.current().runtime.num_cus
    if check_int("new_num_sms", new_num_sms, 0) > most:
        raise ValueError(f"new_num_sms must be from 0 to {most}, what the device has, got {new_num_sms}")
    settings.change(num_sms=None if new_num_sms in (0, most) else new_num_sms)


def get_num_sms() -> int:
    """How many compute units a GEMM may occupy: all of the device's, unless ``set_num_sms`` set fewer.

    Raises:
        hip.NoDeviceError: there is no device.
    """
    return settings.num_cus()


def set_tc_util(new_tc_util: int) -> None:
    """Accepts DeepGEMM's percentage of tensor core utilisation; 0 and 100 mean all of it.

    It changes nothing here: no kernel throttles its MFMAs.

    Raises:
        TypeError, ValueError: ``new_tc_util`` is not an int from 0 to 100.
    """
    if check_int("new_tc_util", new_tc_util, 0) > 100:
        raise ValueError(f"new_tc_util must be from 0 to 100 percent, got {new_tc_util}")
    settings.change(tc_util=new_tc_util or 100)


def get_tc_util() -> int:
    """The number that ``set_tc_util`` set; 100 by default."""
    return settings.values().tc_util


def set_pdl(new_enable_pdl: bool) -> None:
    """Accepts DeepGEMM's switch for programmatic dependent launch.

    It changes nothing here: this is a feature of NVIDIA's. Kernels of a stream run one after the other.

    Raises:
        TypeError: ``new_enable_pdl`` is not a bool.
    """
    settings.change(pdl=check_bool("new_enable_pdl", new_enable_pdl))


def get_pdl() -> bool:
    """The value that ``set_pdl`` set; False by default."""
    return settings.values().pdl


def set_ignore_compile_dims(new_value: bool) -> None:
    """Accepts DeepGEMM's switch against compiling dimensions into kernels. Kernels here never have any compiled in.

    Raises:
        TypeError: ``new_value`` is not a bool.
    """
    check_bool("new_value", new_value)


def set_block_size_multiple_of(new_value: int | tuple[int, int]) -> None:
    """Accepts 1 or (1, 1), DeepGEMM's default for the number of which tiles' rows and columns are a multiple.

    Raises:
        NotImplementedError: any other number; here only the heuristic chooses the sizes of tiles.
    """
    if new_value not in (1, (1, 1)):
        raise NotImplementedError(
            f"new_value must be 1: the heuristic chooses tiles for gfx942, got {new_value}; to limit the rows of one "
            "of grouped GEMM, use set_mk_alignment_for_contiguous_layout"
        )


def set_batch_invariant(new_value: bool) -> None:
    """Sets whether a row's result has the same bits whatever shares its batch. SGLang's build of DeepGEMM has this.

    By default it may not: the number of rows decides into how many parts K is split, and the number and lengths of
    sequences how keys are, and partial sums are rounded. With True, a row of any GEMM has the same bits whatever the
    number of rows M, other rows, other groups and ``expected_m``; a query of attention has the same bits whatever other
    sequences there are. docs/numerics.md tells what the bits do depend on, and what it costs. The environment
    variable ``DG_BATCH_INVARIANT=1`` sets the value that a process begins with.

    There is one exception: FP8 activations times four-bit weights whose scales are far apart. It holds there if all
    scales of the weight are 0 or from 2^-24 to 2^3, as in usual MXFP4 checkpoints, or if a column's scales are equal
    within each 128 values of K. Otherwise a K-block may take several rounds, and how many depends on the other columns
    of a wave, hence on its width, hence on M. bf16 activations have no such exception.

    Without it, too, the same call gives the same bits every time. Switching costs nothing: what was remembered with one
    value is there when it is set again. Kernels differ, so warm up with the value that is used afterwards. A
    captured graph keeps the kernels that it has.

    Raises:
        TypeError: ``new_value`` is not a bool.
    """
    settings.change(batch_invariant=check_bool("new_value", new_value))


def get_batch_invariant() -> bool:
    """The value that ``set_batch_invariant`` set; False by default, or what ``DG_BATCH_INVARIANT`` says."""
    return settings.values().batch_invariant


def use_deterministic_algorithms(enabled: bool) -> None:
    """DeepGEMM's name for ``set_batch_invariant``: in its words, the deterministic mode is also batch invariant.

    All functions here are deterministic in any case.

    Raises:
        TypeError: ``enabled`` is not a bool.
    """
    settings.change(batch_invariant=check_bool("enabled", enabled))


def get_deterministic_algorithms() -> bool:
    """DeepGEMM's name for ``get_batch_invariant``."""
    return settings.values().batch_invariant


def set_compile_mode(new_compile_mode: int) -> None:
    """Sets whether functions only compile their kernels, as SGLang's warm-up wants it.

    Args:
        new_compile_mode: 1 to check arguments, compile and load, but not to launch; outputs stay as they are. 0, the
            default, to launch as well.

    Raises:
        TypeError, ValueError: ``new_compile_mode`` is neither 0 nor 1.
    """
    if check_int("new_compile_mode", new_compile_mode, 0) > 1:
        raise ValueError(f"new_compile_mode must be 0 or 1, got {new_compile_mode}")
    settings.change(compile_mode=new_compile_mode)


def get_compile_mode() -> int:
    """The mode that ``set_compile_mode`` set; 0 by default."""
    return settings.values().compile_mode
