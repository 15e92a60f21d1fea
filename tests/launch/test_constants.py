"""Numbers on the device are shared by calls that only read them."""

from __future__ import annotations

import pytest
import torch
from helpers.good_calls import GOOD
from torch._subclasses.fake_tensor import FakeTensorMode

import deep_gemm_rocm as dg
from deep_gemm_rocm.launch import constants
from deep_gemm_rocm.runtime import hip, session

BESIDE = torch.zeros(1)


@pytest.fixture(autouse=True)
def own_session():
    with session.using(session.current().derived(constants.Constants())):
        yield


def known():
    return session.current().of(constants.Constants).known


def int32(numbers):
    return constants.int32(numbers, BESIDE, lambda: list(numbers))


def test_equal_numbers_share_memory():
    first = int32([3, 0, 5])
    assert first.dtype == torch.int32
    assert first.tolist() == [3, 0, 5]
    assert int32((3, 0, 5)) is first
    assert int32([3, 5, 0]).tolist() == [3, 5, 0]
    assert int32([3, 0, 5, 0]).tolist() == [3, 0, 5, 0]


def test_the_oldest_are_forgotten():
    first = int32([0])
    for number in range(1, 300):
        int32([number])
    assert len(known()) == 256
    assert int32([0]) is not first
    assert int32([299]) is int32([299])


def test_a_graph_keeps_nothing_that_may_be_forgotten():
    if not hip.runtime().is_simulated:
        pytest.skip("copies can't be captured")
    first = int32([1, 2])
    with hip.runtime().capture():
        assert int32([1, 2]) is not first
        int32([2, 3])
    assert len(known()) == 1


def test_numbers_of_other_types_are_checked():
    int32([1, 2])
    with pytest.raises(ZeroDivisionError):
        constants.int32([1.0, 2], BESIDE, lambda: 1 / 0)


def test_fake_tensors_are_not_kept():
    with FakeTensorMode():
        int32([1, 2])
    assert type(int32([1, 2])) is torch.Tensor


def test_weight_gradients_are_checked_again():
    name = "k_grouped_wgrad_gemm_fp8_fp8_fp32_nt"
    arguments = GOOD[name]()
    function, sizes = getattr(dg, name), arguments["batch_sizes"]
    before, added = arguments["out"].clone(), []
    for _ in range(2):
        out = before.clone()
        function(**arguments | {"out": out})
        added.append(out)
    assert torch.equal(*added)
    assert not torch.equal(added[0], before)
    for wrong, error, message in (
        ([*sizes[:-1], float(sizes[-1])], TypeError, r"batch_sizes\[\d\] must be an int, got float"),
        ([*sizes[:-1], [sizes[-1]]], TypeError, r"batch_sizes\[\d\] must be an int, got list"),
        ([*sizes, 16], ValueError, "out must be one matrix for each"),
        (torch.tensor(sizes), TypeError, "batch_sizes must be a list of ints"),
    ):
        with pytest.raises(error, match=message):
            function(**arguments | {"batch_sizes": wrong})
