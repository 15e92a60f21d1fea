"""The oracle of attention."""

from __future__ import annotations

import pytest
import torch

from deep_gemm_rocm.testing import attention_reference


def test_results_of_parts_are_rounded_to_f16_with_a_power_of_two():
    values = torch.tensor([1.0, 1.3 * 2.0**-36], dtype=torch.float64)[None, None, None]
    q, seen = torch.zeros(1, 1, 1, 1, dtype=torch.bfloat16), torch.ones(1, 1, dtype=torch.bool)
    part = (values * 2**14).half().float() / 2**14
    attention_reference(q, q, values, seen=seen, in_parts=True).assert_accurate(part)
    with pytest.raises(AssertionError, match="1 of 2 elements are outside the bound"):
        attention_reference(q, q, values, seen=seen).assert_accurate(part)
