"""Every public function with one or two bad arguments raises documented errors, and has no other effect."""

from __future__ import annotations

import contextlib
import hashlib
import math
import re
import traceback
from pathlib import Path

import pytest
import torch
from helpers import good_calls
from helpers.default_run import some
from helpers.good_calls import FP8, GOOD
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

import deep_gemm_rocm as dg
from deep_gemm_rocm.problems import gemm as checks

DOCUMENTED = (TypeError, ValueError, NotImplementedError)
PACKAGE = Path(dg.__file__).parent

# Functions that take no arguments or always raise NotImplementedError.
WITHOUT = {name for name in dg.__all__ if name.startswith("cublaslt") or "packed_ue8m0" in name}
WITHOUT |= {name for name in dg.__all__ if name.startswith("get_")} - GOOD.keys() | {
    "install_as_deep_gemm",
    "install_as_flash_mla",
}
WITHOUT |= {"bench", "bench_kineto"}  # take functions
WITHOUT |= {"Pair", "Epilogue", "HipError", "JitError", "NoDeviceError", "FlashMLASchedMeta"}  # types and errors
WITHOUT |= {"ceil_div", "align", "stats"}  # arithmetic, and a function without arguments
WITHOUT |= {"DeviceTensor", "as_tensor", "stream"}  # for arrays on the GPU, see test_arrays.py

HUGE = [2**31 - 1, 2**31, 2**32, 2**63 - 1, 2**63, 2**64, 2**70, 10**400, 1e300, math.inf]
HUGE += [-number - 1 for number in HUGE]
VALUES = [
    None, True, False, -1, 0, 1, 3, *HUGE, 1.5, 1e-320, math.nan, "x", "", b"x", [], (), {}, object(),
    (1, 2), (1, 128, 128), (None, None, None), [1, None], ("a", "b", "c"), torch.tensor(3), torch.float64, [2**40],
]  # fmt: skip

CHANGES = {
    "float64": lambda t: t.double(),
    "float32": lambda t: t.float(),
    "float16": lambda t: t.half(),
    "int64": lambda t: t.long(),
    "bool": lambda t: t.bool(),
    "complex": lambda t: t.to(torch.complex64),
    "other FP8": lambda t: t.float().to(torch.float8_e4m3fn),
    "narrower": lambda t: t[..., :-1],
    "shorter": lambda t: t[:-1],
    "longer": lambda t: torch.cat([t.float(), t.float()]).to(t.dtype),
    "empty": lambda t: t[:0],
    "without columns": lambda t: t[..., :0],
    "flat": lambda t: t.flatten(),
    "a number": lambda t: t.flatten()[0],
    "one dimension more": lambda t: t.unsqueeze(0),
    "four dimensions more": lambda t: t[None, None, None, None],
    "transposed": lambda t: t.transpose(0, -1),
    "transposed in memory": lambda t: t.transpose(0, -1).contiguous().transpose(0, -1),
    "repeated row": lambda t: t[:1].expand_as(t),
    "repeated number": lambda t: t.flatten()[:1].as_strided(t.shape, (0,) * t.dim()),
    "every other column": lambda t: torch.cat([t.float(), t.float()], dim=-1).to(t.dtype)[..., ::2],
    "misaligned": lambda t: torch.cat([t.flatten()[:1].float(), t.flatten().float()]).to(t.dtype)[1:].view(t.shape),
    "on meta": lambda t: t.to("meta"),
    "sparse": lambda t: t.to_sparse() if t.dtype != FP8 else t.float().to_sparse(),
    "requires grad": lambda t: t.clone().requires_grad_(t.is_floating_point()),
    "negated": lambda t: torch._neg_view(t.float()).to(t.dtype) if t.dtype == FP8 else torch._neg_view(t),
    "freed": lambda t: freed(t.clone()),
    "NaN": lambda t: torch.full(t.shape, math.nan).to(t.dtype),
    "huge": lambda t: torch.full(t.shape, 1e30).to(t.dtype),
    "an array": lambda t: t.float().numpy(),
    "a list": lambda t: t.float().tolist(),
}  # fmt: skip


def freed(tensor: torch.Tensor) -> torch.Tensor:
    tensor.untyped_storage().resize_(0)
    return tensor


def changed(data: st.DataObject, value):
    """Another value, most often one similar to ``value``."""
    if isinstance(value, torch.Tensor) and data.draw(st.integers(0, 4)):
        try:
            return CHANGES[data.draw(st.sampled_from(list(CHANGES)))](value)
        except (RuntimeError, IndexError):  # the change doesn't suit the tensor
            return None
    if isinstance(value, (tuple, list)) and data.draw(st.integers(0, 4)):
        which = data.draw(st.integers(0, len(value) - 1))
        return type(value)((*value[:which], changed(data, value[which]), *value[which + 1 :]))
    return data.draw(st.sampled_from(VALUES))


def tensors(value) -> list[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        return [value]
    parts = value.values() if isinstance(value, dict) else value if isinstance(value, tuple) else ()
    return [tensor for part in parts for tensor in tensors(part)]


def contents(value) -> list[str]:
    """A hash of each tensor's bits."""
    return [
        hashlib.md5(tensor.contiguous().view(-1).view(torch.uint8).numpy()).hexdigest() for tensor in tensors(value)
    ]


def call(name: str, arguments: dict):
    """Calls a function; returns hashes of its results and arguments."""
    returned = getattr(dg, name)(**arguments)
    return contents((returned, arguments))


@pytest.fixture(scope="module")
def expected():
    """Results of good arguments, by function."""
    return {}


def check_raised_on_purpose(error: Exception) -> None:
    """Checks that this package raised the error: messages of torch and ctypes don't explain the bad argument."""
    (frame,) = traceback.extract_tb(error.__traceback__, limit=-1)
    assert PACKAGE in Path(frame.filename).parents, f"{error!r} comes from {frame}"
    assert (frame.line or "").startswith("raise "), f"{error!r} comes from {frame.line}"


def try_arguments(name: str, good: dict, bad: dict) -> bool:
    """Calls a function with bad arguments. If it raises, the tensors of ``good`` must be unchanged.

    Returns:
        Whether the arguments were taken.
    """
    before = contents(good)
    try:
        getattr(dg, name)(**bad)
    except DOCUMENTED as error:
        check_raised_on_purpose(error)
        assert contents(good) == before
        return False
    else:
        for setting, default in (("mk_alignment_for_contiguous_layout", 128), ("num_sms", 0), ("compile_mode", 0)):
            getattr(dg, f"set_{setting}")(default)
        return True


def with_something_wrong(good: dict, data: st.DataObject) -> dict:
    bad = dict(good)
    for parameter in data.draw(st.lists(st.sampled_from(list(good)), min_size=1, max_size=2, unique=True)):
        bad[parameter] = changed(data, good[parameter])
    return bad


def try_something_wrong(name: str, expected: dict, data: st.DataObject) -> None:
    if name not in expected:
        expected[name] = call(name, GOOD[name]())
    good = GOOD[name]()
    try_arguments(name, good, with_something_wrong(good, data))
    assert call(name, GOOD[name]()) == expected[name]


FEW = settings(
    max_examples=4, deadline=None, derandomize=True, database=None, phases=[Phase.generate],
    suppress_health_check=list(HealthCheck),
)  # fmt: skip


@pytest.mark.parametrize("name", some(GOOD, 12))
def test_something_wrong(name, expected):
    FEW(given(st.data())(lambda data: try_something_wrong(name, expected, data)))()


@pytest.mark.parametrize("name", GOOD)
def test_nothing_wrong_is_launched(name, launched):
    def try_without_kernels(data: st.DataObject) -> None:
        good = GOOD[name]()
        launched.clear()
        if not try_arguments(name, good, with_something_wrong(good, data)):
            assert not launched

    FEW(given(st.data())(try_without_kernels))()


def try_huge_numbers(name: str) -> None:
    good = GOOD[name]()
    for parameter, value in good.items():
        if not tensors(value):
            for huge in HUGE:
                try_arguments(name, good, good | {parameter: huge})


@pytest.mark.parametrize("name", GOOD)
def test_no_number_is_too_large_for_an_error(name, launched):
    try_huge_numbers(name)


@pytest.mark.parametrize("name", some(GOOD, 16))
def test_no_number_that_is_taken_is_too_large_for_a_launch(name):
    try_huge_numbers(name)


@pytest.mark.parametrize("name", some(GOOD, 8))
def test_a_list_that_contains_itself_has_an_end(name, launched):
    endless: list = []
    endless.append(endless)
    good = GOOD[name]()
    for parameter in good:
        try_arguments(name, good, good | {parameter: endless})


@pytest.mark.parametrize("name", [name for name in GOOD if "fp8_fp8" in name])
def test_errors_have_the_names_of_deep_gemm_1(name):
    good = GOOD[name]()
    operands = {
        **{parameter: None for parameter in good.keys() & {"lhs", "rhs", "out", "m_indices", "masked_m"}},
        "lhs[0]": (None, good["lhs"][1]),
        "rhs[1]": (good["rhs"][0], None),
    }
    for parameter, bad in operands.items():
        with pytest.raises(TypeError, match=f"^{re.escape(parameter)} must be a (pair|torch.Tensor)"):
            getattr(dg, name)(**good | {parameter.partition("[")[0]: bad})


def with_one_change(value, change):
    """The value with the change in each one of its tensors that it suits."""
    if isinstance(value, torch.Tensor):
        with contextlib.suppress(RuntimeError, IndexError):
            yield change(value)
    parts = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, tuple) else ()
    for key, part in parts:
        for changed_part in with_one_change(part, change):
            changed = dict(parts) | {key: changed_part}
            yield changed if isinstance(value, dict) else tuple(changed.values())


@pytest.mark.parametrize("name", [name for name in GOOD if name.endswith(("_nt", "_nn", "_masked", "_contiguous"))])
def test_something_wrong_at_another_m(name, monkeypatch, launched):
    """A good call with another M, once remembered, hides no mistake, and the error is the same."""

    def outcome(arguments):
        launched.clear()
        try:
            getattr(dg, name)(**arguments)
        except DOCUMENTED as error:
            assert not launched
            return type(error), str(error)
        return bytes(launched[0].arguments) if launched else None

    assert outcome(GOOD[name]())
    monkeypatch.setattr(good_calls, "M", good_calls.M + 24)
    good = GOOD[name]()
    assert outcome(good)
    outcomes = set()
    for change in CHANGES.values():
        for bad in with_one_change(good, change):
            remembered = outcome(bad)
            outcomes.add(str(remembered))
            with monkeypatch.context() as patched:
                patched.setattr(checks, "_checked_family", lambda *family: None)
                assert outcome(bad) == remembered
    assert len(outcomes) > 20


@pytest.mark.slow
@pytest.mark.parametrize("name", GOOD)
def test_anything_wrong(name, expected):
    many = settings(FEW, max_examples=300)
    many(given(st.data())(lambda data: try_something_wrong(name, expected, data)))()


def test_every_public_function_is_tried():
    tried = {getattr(dg, name) for name in GOOD}
    assert {name for name in dg.__all__ if getattr(dg, name) not in tried} <= WITHOUT
