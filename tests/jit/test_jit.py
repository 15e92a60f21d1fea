"""Rendering templates, following includes, compiling each kernel once, and launching it."""

from __future__ import annotations

import ctypes
import enum
import shutil
import subprocess
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import jinja2
import pytest
import torch
from helpers.forked import in_child
from helpers.paths import TEMPLATES
from hypothesis import given
from hypothesis import strategies as st

from deep_gemm_rocm import jit
from deep_gemm_rocm.jit import cache, toolchain
from deep_gemm_rocm.jit.render import render
from deep_gemm_rocm.jit.source import Source
from deep_gemm_rocm.runtime import hip

ARGTYPES = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int, ctypes.c_void_p)
VALUES = {"threads": 64, "factor": 2, "plus_one": False}


# ---- rendering


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "value.hip.j2").write_text("{{ value }}")
    return tmp_path


class Count(enum.IntEnum):
    THREE = 3


@pytest.mark.parametrize(
    ("value", "text"),
    [
        *((True, "true"), (False, "false")),
        *((-7, "-7"), (2**63 - 1, "9223372036854775807"), (Count.THREE, "3")),
        ("abc_1", "abc_1"),
    ],
)
def test_values_print_as_cpp(folder, value, text):
    assert render(folder, "value.hip.j2", {"value": value}) == text


@given(st.text())
def test_no_text_but_an_identifier_gets_in(tmp_path_factory, text):
    if text.isidentifier() and text.isascii():
        return
    with pytest.raises(ValueError, match="identifier"):
        render(tmp_path_factory.getbasetemp(), "value.hip.j2", {"value": text})


@pytest.mark.parametrize("value", [1.0, None, [1], {"a": 1}, b"a", torch.tensor(1)])
def test_values_of_other_types_are_refused(folder, value):
    with pytest.raises(TypeError, match=f"value must be an int, a bool or an identifier, not a {type(value).__name__}"):
        render(folder, "value.hip.j2", {"value": value})


@pytest.mark.parametrize("value", [2**63, -(2**63) - 1])
def test_integers_beyond_64_bits_are_refused(folder, value):
    with pytest.raises(ValueError, match="64 bits"):
        render(folder, "value.hip.j2", {"value": value})


def test_a_name_without_a_value_is_an_error(folder):
    with pytest.raises(jinja2.UndefinedError, match="'value' is undefined"):
        render(folder, "value.hip.j2", {"valeu": 1})


# ---- following headers


def collect(folder: Path, kernel: str, **headers: str) -> dict[str, str]:
    for name, text in headers.items():
        file = folder / f"{name.replace('__', '/')}.h"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    return Source.collect("kernel", kernel, folder).headers


def test_headers_are_followed_to_their_end(tmp_path):
    found = collect(
        tmp_path,
        '#include "dg/a.h"\n  #  include <dg/b.h>\n',
        dg__a='#pragma once\n#include "c.h"\n',
        dg__b='#include "dg/a.h"\n#ifdef NEVER\n#include "sub/d.h"\n#endif\n',
        dg__c='#include "a.h"\n',  # a cycle
        dg__sub__d='#include "../e.h"\n',
        dg__e="",
        dg__unused="",
    )
    assert sorted(found) == ["dg/a.h", "dg/b.h", "dg/c.h", "dg/e.h", "dg/sub/d.h"]


def test_a_header_beside_the_includer_comes_before_one_below_the_root(tmp_path):
    found = collect(tmp_path, "#include <dg/a.h>", dg__a='#include "b.h"\n#include <b.h>', dg__b="inner", b="outer")
    assert found == {"dg/a.h": '#include "b.h"\n#include <b.h>', "dg/b.h": "inner", "b.h": "outer"}


def test_headers_outside_of_the_folder_are_not_ours(tmp_path):
    (tmp_path / "outside.h").write_text("")
    assert collect(tmp_path / "include", '#include "../outside.h"\n#include </etc/passwd>\n#include "none.h"\n') == {}


def test_what_was_collected_is_what_gets_compiled(tmp_path):
    collect(tmp_path / "include", "", dg__a="before")
    source = Source.collect("kernel", '#include "dg/a.h"', tmp_path / "include")
    (tmp_path / "include" / "dg" / "a.h").write_text("after")
    (tmp_path / "build").mkdir()
    source.write(tmp_path / "build")
    assert (tmp_path / "build" / "include" / "dg" / "a.h").read_text() == "before"


# ---- kernels


@pytest.fixture(autouse=True)
def fresh(tmp_path, monkeypatch):
    monkeypatch.setenv("DG_JIT_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(jit.kernels, "include_dir", lambda: TEMPLATES)
    jit.forget()
    yield
    jit.forget()


def get_scale(**values: int | bool) -> jit.Kernel:
    return jit.get_kernel("scale.hip.j2", VALUES | values, ARGTYPES)


def run(kernel: jit.Kernel, x: torch.Tensor) -> torch.Tensor:
    y = torch.full_like(x, torch.nan)
    with hip.runtime().launching(x=x, y=y) as stream:
        kernel(x.data_ptr(), y.data_ptr(), x.numel(), stream)
    return y


@pytest.mark.parametrize("size", [1, 63, 64, 65, 1000])
def test_a_kernel_does_what_its_template_says(size):
    x = torch.randn(size)
    torch.testing.assert_close(run(get_scale(), x), 2 * x, rtol=0, atol=0)
    torch.testing.assert_close(run(get_scale(factor=-3, plus_one=True), x), -3 * x + 1, rtol=1e-6, atol=1e-6)


def test_a_kernel_tells_how_it_came_about():
    compiled = get_scale()
    jit.forget()
    found = get_scale()
    assert (compiled.artefact.from_cache, found.artefact.from_cache) == (False, True)
    assert compiled.ready_seconds >= compiled.artefact.compile_seconds > found.ready_seconds > 0
    assert jit.loaded() == [found]


def test_a_warm_call_looks_nowhere(monkeypatch):
    kernel = get_scale()

    def unexpected(*_):
        raise AssertionError("a warm call must not get here")

    monkeypatch.setattr(jit.kernels, "include_dir", unexpected)
    monkeypatch.setattr(cache, "obtain", unexpected)
    monkeypatch.setattr(toolchain, "choose", unexpected)
    assert get_scale() is kernel


def test_threads_that_ask_together_compile_once(monkeypatch):
    compiles = []
    obtain = cache.obtain
    monkeypatch.setattr(cache, "obtain", lambda *asked: compiles.append(asked) or obtain(*asked))
    start = threading.Barrier(8)

    def ask(index):
        start.wait()
        return get_scale(factor=index % 2)

    with ThreadPoolExecutor(8) as threads:
        kernels = list(threads.map(ask, range(8)))
    assert len(compiles) == 2
    assert len(set(map(id, kernels))) == 2


def test_a_library_that_was_exchanged_is_never_loaded(tmp_path, monkeypatch):
    linker = next(filter(None, map(shutil.which, ("cc", "gcc", "clang"))), None)
    if linker is None:
        pytest.skip("needs a C compiler")
    marker = tmp_path / "was loaded"
    code = f'#include <stdio.h>\n__attribute__((constructor)) void f(void) {{ fclose(fopen("{marker}", "w")); }}\n'
    other = tmp_path / "other.so"
    subprocess.run([linker, "-shared", "-fPIC", "-x", "c", "-", "-o", other], input=code.encode(), check=True)
    in_child(lambda: ctypes.CDLL(str(other)) and None)
    assert marker.exists()
    marker.unlink()

    library = get_scale().artefact.library
    library.unlink()  # overwriting would change this process's mapping
    shutil.copyfile(other, library)
    jit.forget()
    x = torch.randn(10)
    assert torch.equal(run(get_scale(), x), 2 * x)
    assert not marker.exists()


def test_a_kernel_that_another_process_evicts_right_now_is_made_again(monkeypatch):
    obtain = cache.obtain

    def obtain_and_lose(*asked):
        monkeypatch.setattr(cache, "obtain", obtain)
        artefact = obtain(*asked)
        shutil.rmtree(artefact.library.parent)
        return artefact

    monkeypatch.setattr(cache, "obtain", obtain_and_lose)
    x = torch.randn(10)
    assert torch.equal(run(get_scale(), x), 2 * x)


def test_a_compile_error_does_not_last(tmp_path, monkeypatch):
    include = tmp_path / "include"
    (include / "deep_gemm_rocm").mkdir(parents=True)
    for file in (TEMPLATES / "deep_gemm_rocm").iterdir():
        (include / "deep_gemm_rocm" / file.name).write_text(file.read_text())
    header = include / "deep_gemm_rocm" / "launch.h"
    good = header.read_text()
    header.write_text(good + "#error not now\n")
    monkeypatch.setattr(jit.kernels, "include_dir", lambda: include)
    with pytest.raises(jit.CompileError, match="not now") as failed:
        get_scale()
    assert "#error not now" in (failed.value.source.parent / "include" / "deep_gemm_rocm" / "launch.h").read_text()
    header.write_text(good)
    x = torch.randn(10)
    assert torch.equal(run(get_scale(), x), 2 * x)


def test_an_edited_header_makes_another_kernel(tmp_path, monkeypatch):
    include = tmp_path / "include" / "deep_gemm_rocm"
    include.mkdir(parents=True)
    (include / "factor.h").write_text("constexpr int kFactor = 2;\n")
    (include / "launch.h").write_text((TEMPLATES / "deep_gemm_rocm" / "launch.h").read_text())
    template = (TEMPLATES / "deep_gemm_rocm" / "scale.hip.j2").read_text()
    (include / "scale.hip.j2").write_text('#include "deep_gemm_rocm/factor.h"\n' + template)
    monkeypatch.setattr(jit.kernels, "include_dir", lambda: tmp_path / "include")
    x = torch.randn(10)
    assert torch.equal(run(get_scale(factor="kFactor"), x), 2 * x)
    (include / "factor.h").write_text("constexpr int kFactor = 5;\n")
    jit.forget()
    assert torch.equal(run(get_scale(factor="kFactor"), x), 5 * x)


def test_a_launch_that_fails_names_the_error():
    with pytest.raises(hip.HipError, match="hipErrorInvalid") as failed:
        run(get_scale(threads=2048), torch.randn(10))
    assert failed.value.status != 0
    x = torch.randn(10)
    assert torch.equal(run(get_scale(), x), 2 * x)  # and the next launch works


def test_wrong_arguments_do_not_reach_the_kernel():
    kernel = get_scale()
    with pytest.raises((TypeError, ctypes.ArgumentError)):
        kernel(0, 0, 0.5, 0)
    with pytest.raises(TypeError):
        kernel(0)


def test_a_library_that_is_no_kernel_says_so(tmp_path):
    no_library = tmp_path / "kernel.so"
    no_library.write_text("not ELF")
    with pytest.raises(jit.LoadError, match=str(no_library)):
        jit.Kernel(cache.Artefact(no_library, from_cache=True, compile_seconds=0.0), ARGTYPES)


def test_a_forked_child_gets_and_runs_kernels():
    x = torch.randn(100)
    run(held := get_scale(), x)

    def in_the_child():
        return get_scale() is held, torch.equal(run(held, x), 2 * x), torch.equal(run(get_scale(factor=7), x), 7 * x)

    assert in_child(in_the_child) == (True, True, True)


def test_threads_launch_on_the_same_tensor():
    kernels = [get_scale(factor=factor) for factor in (1, 2, 3, 4)]
    x = torch.randn(1000)

    def launch_repeatedly(index):
        return all(torch.equal(run(kernels[index % 4], x), (index % 4 + 1) * x) for _ in range(10))

    with ThreadPoolExecutor(8) as threads:
        assert all(threads.map(launch_repeatedly, range(8)))
