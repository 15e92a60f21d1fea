"""Signatures and calls in the documentation agree with the functions."""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import deep_gemm_rocm as dg

ROOT = Path(__file__).parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/*.md")])
BLOCK = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)
SPAN = re.compile(r"`(?:def )?(?:dg\.|deep_gemm_rocm\.)?(\w+)(\([^`]*\))`")


def calls(code: str) -> Iterator[ast.Call]:
    """Those of public functions, in a program or a part of one."""
    for node in ast.walk(ast.parse(code)):
        function = getattr(node, "func", None)
        if isinstance(function, ast.Attribute) and function.attr in dg.__all__:
            if isinstance(function.value, ast.Name) and function.value.id in ("dg", "deep_gemm_rocm"):
                yield node
        elif isinstance(function, ast.Name) and function.id in dg.__all__:
            yield node


def check_call(call: ast.Call) -> None:
    """
    Raises:
        TypeError: the function can't be called so.
    """
    function = call.func
    signature = inspect.signature(getattr(dg, function.attr if isinstance(function, ast.Attribute) else function.id))
    keywords = {keyword.arg: None for keyword in call.keywords if keyword.arg}
    if any(isinstance(argument, ast.Starred) for argument in call.args) or len(keywords) < len(call.keywords):
        signature.bind_partial(**keywords)
    else:
        signature.bind(*call.args, **keywords)


def check_signature(name: str, parameters: str) -> None:
    """Compares a signature with that of the public function. An ellipsis may stand for the last parameters.

    Raises:
        TypeError: a parameter has another name, place or default, or one is left out that has no default.
    """
    shown, is_partial = re.subn(r",? *(…|\.\.\.)\)$", ")", parameters)
    try:
        theirs = list(inspect.signature(eval(f"lambda {shown[1:-1]}: None", dict(vars(dg)))).parameters.values())
    except SyntaxError:
        return check_call(ast.parse(f"{name}{shown}", mode="eval").body)  # with values in place of names
    ours = list(inspect.signature(getattr(dg, name)).parameters.values())
    for their, our in zip(theirs, ours, strict=False):
        if (their.name, their.kind) != (our.name, our.kind) or their.default not in (their.empty, our.default):
            raise TypeError(f"{name}{parameters} shows the parameter {their} where the function has {our}")
    if len(theirs) > len(ours):
        raise TypeError(f"{name}{parameters} shows more parameters than the function has")
    left_out = [our.name for our in ours[len(theirs) :] if our.default is our.empty]
    if left_out and not is_partial:
        raise TypeError(f"{name}{parameters} leaves out {', '.join(left_out)}, without an ellipsis")
    return None


def check_page(text: str) -> None:
    for code in BLOCK.findall(text):
        for call in calls(code):
            check_call(call)
    for name, parameters in SPAN.findall(BLOCK.sub("", text)):
        if name in dg.__all__:
            check_signature(name, parameters)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_signatures_and_calls(page):
    check_page(page.read_text())


@pytest.mark.parametrize(
    "text",
    [
        "`gemm_fp8(a, b, out=None, *, c=None)`",
        "`gemm_fp8(a, b, d=None)`",
        "`dg.gemm_fp8(a, b, out=0)`",
        "`fp8_gemm_nt(a, b)`",
        "`ceil_div(x, y, z)`",
        "`fp8_gemm_nt((a, sfa), b)`",
        "`set_num_sms(n)`",
        "```python\ndg.gemm_fp8(a, b, output=c)\n```",
        "```python\ny = deep_gemm_rocm.gemm_fp8(a)\n```",
    ],
)
def test_another_signature_is_noticed(text):
    with pytest.raises(TypeError):
        check_page(text)


@pytest.mark.parametrize(
    "text",
    [
        "`gemm_fp8(a, b, out=None, c=None, recipe=None, *, bias=None)`",
        "`fp8_gemm_nt(a, b, d, …)`",
        "`set_compile_mode(1)`",
        "`fp8_einsum(expr, a, b, d, c=None, recipe=(1, 128, 128))`",
        "```python\ndg.gemm_fp8(*operands, **options)\nfoo.gemm_fp8()\n```",
    ],
)
def test_the_functions_signatures_pass(text):
    check_page(text)
