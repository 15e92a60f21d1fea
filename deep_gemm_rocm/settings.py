"""Settings of this process, under DeepGEMM's names."""

from __future__ import annotations

import functools

from . import hip

# Kernels' tiles have a multiple of 16 rows, and a tile of a layout of group ids lies in one group.
_ALIGNMENTS = (16, 32, 64, 128)

_alignment = 128
_num_sms: int | None = None


def set_mk_alignment_for_contiguous_layout(new_value: int) -> None:
    """Sets the number of which each group's first row is a multiple in the contiguous layouts.

    Smaller groups waste fewer padding rows with a smaller alignment, but kernels' tiles are no larger than it.

    Raises:
        TypeError, ValueError: ``new_value`` is not 16, 32, 64 or 128.
    """
    global _alignment
    if isinstance(new_value, bool) or not isinstance(new_value, int):
        raise TypeError(f"new_value must be an int, got {type(new_value).__name__}")
    if new_value not in _ALIGNMENTS:
        raise ValueError(f"the alignment of contiguous layouts must be one of {_ALIGNMENTS}, got {new_value}")
    _alignment = new_value


def get_mk_alignment_for_contiguous_layout() -> int:
    """The number of which each group's first row is a multiple in the contiguous layouts: 128, unless it was set."""
    return _alignment


# DeepGEMM's older name.
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
    if isinstance(expected_m, bool) or not isinstance(expected_m, int):
        raise TypeError(f"expected_m must be an int or None, got {type(expected_m).__name__}")
    if expected_m <= 0:
        raise ValueError(f"expected_m must be positive, got {expected_m}")
    return next((alignment for alignment in _ALIGNMENTS if alignment >= expected_m), _ALIGNMENTS[-1])


def set_num_sms(new_num_sms: int) -> None:
    """Sets how many of the device's compute units (SMs, in DeepGEMM's words) a GEMM may occupy at most; 0 for all.

    Kernels then run as so many workgroups, each of which computes many tiles.

    Raises:
        TypeError, ValueError: ``new_num_sms`` is not an int from 0 to the number that the device has.
        hip.NoDeviceError: there is no device.
    """
    global _num_sms
    if isinstance(new_num_sms, bool) or not isinstance(new_num_sms, int):
        raise TypeError(f"new_num_sms must be an int, got {type(new_num_sms).__name__}")
    if not 0 <= new_num_sms <= device_num_cus():
        raise ValueError(f"new_num_sms must be from 0 to {device_num_cus()}, what the device has, got {new_num_sms}")
    _num_sms = new_num_sms or None


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
