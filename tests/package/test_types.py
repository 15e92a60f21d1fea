"""What type checkers know of public functions, and how signatures look at run time."""

from __future__ import annotations

import inspect
import os
import subprocess
import sys
from pathlib import Path

import pytest

import deep_gemm_rocm as dg

ROOT = Path(__file__).parents[2]

TYPED = """
import torch
from typing_extensions import assert_type

import deep_gemm_rocm as dg

Both = tuple[torch.Tensor, torch.Tensor]
Either = torch.Tensor | Both


def attention(x: torch.Tensor, flag: bool) -> None:
    pages = {"block_table": x, "context_lens": x}
    assert_type(dg.flash_attention(x, x, x, causal=True), torch.Tensor)
    assert_type(dg.flash_attention(x, x, x, return_lse=False), torch.Tensor)
    assert_type(dg.flash_attention(x, x, x, return_lse=True, window=(4, -1)), Both)
    assert_type(dg.flash_attention(x, x, x, return_lse=flag), Either)
    assert_type(dg.flash_attention_decode(x, x, x, block_table=x, context_lens=x), torch.Tensor)
    assert_type(dg.flash_attention_decode(x, x, x, block_table=x, context_lens=x, return_lse=True), Both)
    assert_type(dg.mla_decode(x, x, block_table=x, context_lens=x, num_splits=2), torch.Tensor)
    assert_type(dg.mla_decode(x, x, block_table=x, context_lens=x, return_lse=True), Both)


def gemm(a: dg.Pair, b: dg.Pair, d: torch.Tensor, epilogue: dg.Epilogue) -> None:
    assert_type(dg.gemm_fp8(a, b, None, d, epilogue=epilogue), torch.Tensor)
    dg.fp8_gemm_nn(a, b, (d, d), epilogue="silu_and_mul")


errors: tuple[type[Exception], ...] = (dg.HipError, dg.JitError, dg.NoDeviceError)
"""

# Each of these lines is an error.
WRONG = """
import torch

import deep_gemm_rocm as dg


def wrong(x: torch.Tensor) -> None:
    dg.fp8_gemm_nt((x, x), (x, x), x, epilogue="silu")
    dg.flash_attention(x, x, x, casual=True)
    dg.mla_decode(x, x, block_table=x)
    dg.flash_attention(x, x, x).shape, dg.flash_attention(x, x, x, return_lse=True).shape
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    pytest.importorskip("mypy")
    return tmp_path_factory.mktemp("typed")


def mypy(folder: Path, program: str) -> list[str]:
    """The errors in a program."""
    (folder / "program.py").write_text(program)
    command = [sys.executable, "-m", "mypy", "--strict", "--ignore-missing-imports", "--python-version", "3.10"]
    command += ["--follow-imports=silent", "--no-error-summary", "program.py"]
    done = subprocess.run(
        command, cwd=folder, env=os.environ | {"MYPYPATH": str(ROOT)}, capture_output=True, text=True, check=False
    )
    assert done.returncode in (0, 1), done.stderr
    return [line for line in done.stdout.splitlines() if ": error:" in line]


@pytest.mark.slow
def test_type_checkers_know_what_functions_return(folder):
    assert mypy(folder, TYPED) == []


@pytest.mark.slow
def test_type_checkers_find_mistakes(folder):
    lines = {int(error.split(":")[1]) for error in mypy(folder, WRONG)}
    assert lines == {8, 9, 10, 11}


def options(of: type) -> dict[str, str]:
    """The names of a TypedDict's fields and their types."""
    return {name: getattr(value, "__forward_arg__", value) for name, value in of.__annotations__.items()}


@pytest.mark.parametrize(
    ("name", "module", "typed"),
    [
        ("flash_attention", "attention", "_AttentionOptions"),
        ("flash_attention_decode", "decode", "_DecodeOptions"),
        ("mla_decode", "decode", "_LatentOptions"),
    ],
)
def test_overloads_have_all_arguments(name, module, typed):
    parameters = inspect.signature(getattr(dg, name)).parameters.values()
    keywords = {p.name: p.annotation for p in parameters if p.kind is p.KEYWORD_ONLY and p.name != "return_lse"}
    assert options(getattr(getattr(dg.api, module), typed)) == keywords


def test_signatures_say_what_callers_are_returned():
    assert inspect.signature(dg.gemm_fp8).return_annotation == "torch.Tensor"
    returned = inspect.signature(dg.flash_attention).return_annotation
    assert returned == "torch.Tensor | tuple[torch.Tensor, torch.Tensor]"
