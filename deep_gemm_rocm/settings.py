"""Settings of this process, under DeepGEMM's names."""

from __future__ import annotations

import functools

from . import changes, hip
from .checks import check_bool, check_int

# Kernels' tiles have a multiple of 16 rows, and a tile of a layout of group ids lies in one group.
_ALIGNMENTS = (16, 32, 64, 128)

_alignment = 128
_num_sms: int | None = None
_tc_util = 100
_pdl = False
_compile_mode = 0


def set_mk_alignment_for_contiguous_layout(new_value: int) -> None:
    """Sets the number of which each group's first row is a multiple in the contiguous layouts.

    Smaller groups waste fewer padding rows with a smaller alignment, but kernels' tiles are no larger than it.

    Raises:
        TypeError, ValueError: ``new_value`` is not 16, 32, 64 or 128.
    """
    global _alignment
    if check_int("new_value", new_value, 0) not in _ALIGNMENTS:
        raise ValueError(f"the alignment of contiguous layouts must be one of {_ALIGNMENTS}, got {new_value}")
    _alignment = new_value
    changes.note()


def get_mk_alignment_for_contiguous_layout() -> int:
    """The number of which each group's first row is a multiple in the contiguous layouts: 128, unless it was set."""
    return _alignment


# DeepGEMM's other names.
get_k_alignment_for_contiguous_layout = get_mk_alignment_for_contiguous_layout
get_m_alignment_for_contiguous_layout = get_mk_alignment_for_contiguous_layout


def get_theoretical_mk_alignment_for_contiguous_layout(expected_m: int | None = None) -> int:
    """The alignment with which groups of about ``expected_m`` rows run best: the largest tile that they fill.

    Args:
        expected_m: rows of a group; None for many.

    Returns:
        16, 32, 64 or 128: the smallest of them that is at least ``expected_m``, else 128.

    Raises:
        TypeError, ValueError: ``expected_m`` is not a positive int.
    """
    if expected_m is None:
        return _ALIGNMENTS[-1]
    check_int("expected_m", expected_m, 1)
    return next((alignment for alignment in _ALIGNMENTS if alignment >= expected_m), _ALIGNMENTS[-1])


def set_num_sms(new_num_sms: int) -> None:
    """Sets how many of the device's compute units (SMs, in DeepGEMM's words) a GEMM may occupy at most; 0 for all.

    Kernels then run as so many workgroups, each of which computes many tiles.

    Raises:
        TypeError, ValueError: ``new_num_sms`` is not an int from 0 to the number that the device has.
        hip.NoDeviceError: there is no device.
    """
    global _num_sms
    if check_int("new_num_sms", new_num_sms, 0) > device_num_cus():
        raise ValueError(f"new_num_sms must be from 0 to {device_num_cus()}, what the device has, got {new_num_sms}")
    _num_sms = new_num_sms or None
    changes.note()


def get_num_sms() -> int:
    """How many compute units a GEMM may occupy: all of the device's, unless ``set_num_sms`` set fewer.

    Raises:
        hip.NoDeviceError: there is no device.
    """
    return device_num_cus() if _num_sms is None else _num_sms


@functools.cache
def device_num_cus() -> int:
    """Compute units of the device; of several, the smallest number."""
    return min(device.compute_units for device in hip.runtime().devices() if device.arch == hip.ARCH)


@functools.cache
def device_num_xcds() -> int:
    """XCDs of the device, among which it deals workgroups round-robin; of several devices, the smallest number."""
    return min(device.xcds for device in hip.runtime().devices() if device.arch == hip.ARCH)


def set_tc_util(new_tc_util: int) -> None:
    """Accepts a percentage of the tensor cores' time that DeepGEMM's heuristic is to use; 0 and 100 for all.

    It changes nothing here: no kernel holds its matrix instructions back.

    Raises:
        TypeError, ValueError: ``new_tc_util`` is not an int from 0 to 100.
    """
    global _tc_util
    if check_int("new_tc_util", new_tc_util, 0) > 100:
        raise ValueError(f"new_tc_util must be from 0 to 100 percent, got {new_tc_util}")
    _tc_util = new_tc_util or 100


def get_tc_util() -> int:
    """What ``set_tc_util`` set, 100 if nothing."""
    return _tc_util


def set_pdl(new_enable_pdl: bool) -> None:
    """Accepts whether DeepGEMM's kernels may start before the one in front has ended.

    It changes nothing here: programmatic dependent launch is NVIDIA's, kernels of a stream run one after the other.

    Raises:
        TypeError: ``new_enable_pdl`` is not a bool.
    """
    global _pdl
    _pdl = check_bool("new_enable_pdl", new_enable_pdl)


def get_pdl() -> bool:
    """What ``set_pdl`` set, False if nothing."""
    return _pdl


def set_ignore_compile_dims(new_value: bool) -> None:
    """Accepts whether DeepGEMM is to compile no dimension into kernels. None ever is here.

    Raises:
        TypeError: ``new_value`` is not a bool.
    """
    check_bool("new_value", new_value)


def set_block_size_multiple_of(new_value: int | tuple[int, int]) -> None:
    """Accepts 1, or (1, 1), the number that DeepGEMM's tiles are a multiple of in rows and columns unless it is set.

    Raises:
        NotImplementedError: another number; the sizes of tiles are the heuristic's choice here.
    """
    if new_value not in (1, (1, 1)):
        raise NotImplementedError(
            f"new_value must be 1: the heuristic chooses tiles for gfx942, got {new_value}; to limit the rows of one "
            "of grouped GEMM, use set_mk_alignment_for_contiguous_layout"
        )


def set_compile_mode(new_compile_mode: int) -> None:
    """Sets whether functions only compile their kernels, as SGLang warms up.

    Args:
        new_compile_mode: 1 to check arguments, compile and load, but not to launch; outputs stay as they are. 0, the
            default, to launch as well.

    Raises:
        TypeError, ValueError: ``new_compile_mode`` is neither.
    """
    global _compile_mode
    if check_int("new_compile_mode", new_compile_mode, 0) > 1:
        raise ValueError(f"new_compile_mode must be 0 or 1, got {new_compile_mode}")
    _compile_mode = new_compile_mode
    changes.note()


def get_compile_mode() -> int:
    """What ``set_compile_mode`` set, 0 if nothing."""
    return _compile_mode
