"""Fixtures for all tests."""

from __future__ import annotations

import pytest

import deep_gemm_rocm as dg


@pytest.fixture
def default_settings():
    """Undoes what the test sets."""
    yield
    dg.set_mk_alignment_for_contiguous_layout(128)
    dg.set_num_sms(0)
    dg.set_tc_util(0)
    dg.set_pdl(False)
    dg.set_compile_mode(0)
