"""Settings under DeepGEMM's names."""

from __future__ import annotations

import pytest

import deep_gemm_rocm as dg
from deep_gemm_rocm import simulator
from deep_gemm_rocm.runtime import hip
from deep_gemm_rocm.testing import gemm_problem


def test_alignment():
    assert dg.get_mk_alignment_for_contiguous_layout() == 128
    for alignment in (16, 32, 64, 128):
        dg.set_mk_alignment_for_contiguous_layout(alignment)
        assert dg.get_mk_alignment_for_contiguous_layout() == dg.get_m_alignment_for_contiguous_layout() == alignment


@pytest.mark.parametrize(
    ("value", "error"), [(0, ValueError), (8, ValueError), (48, ValueError), (256, ValueError), (64.0, TypeError)]
)
def test_bad_alignments(value, error):
    with pytest.raises(error, match=r"one of \(16, 32, 64, 128\), got|must be an int, got float"):
        dg.set_mk_alignment_for_contiguous_layout(value)
    assert dg.get_mk_alignment_for_contiguous_layout() == 128


def test_theoretical_alignment():
    for arguments in ((), (None,), (1,), (4096,), (100, 8), (None, 8)):
        assert dg.get_theoretical_mk_alignment_for_contiguous_layout(*arguments) == 128


@pytest.mark.parametrize(("value", "error"), [(0, ValueError), (-1, ValueError), (1.5, TypeError)])
def test_bad_expectations(value, error):
    with pytest.raises(error, match="expected_m must be"):
        dg.get_theoretical_mk_alignment_for_contiguous_layout(value)
    with pytest.raises(error, match="num_groups must be"):
        dg.get_theoretical_mk_alignment_for_contiguous_layout(3, value)


def test_num_sms():
    of_device = min(device.compute_units for device in hip.runtime().devices())
    assert dg.get_num_sms() == of_device
    dg.set_num_sms(20)
    assert dg.get_num_sms() == 20
    for value, error in ((-1, ValueError), (of_device + 1, ValueError), (1.0, TypeError)):
        with pytest.raises(error, match=r"new_num_sms must be"):
            dg.set_num_sms(value)
    assert dg.get_num_sms() == 20
    dg.set_num_sms(0)
    assert dg.get_num_sms() == of_device


def test_num_sms_bounds_the_workgroups_of_a_launch():
    if not hip.runtime().is_simulated:
        pytest.skip("needs the simulator")
    a, b = gemm_problem(2048, 256, 128)
    with simulator.counters() as counted:
        for num_sms in (0, 3):
            dg.set_num_sms(num_sms)
            dg.gemm_fp8(a, b)
    of_all, of_three = (kernel.grid[0] for kernel in counted.kernels)
    assert of_all > 3
    assert of_three == 3
