"""Plug-ins do nothing where they should, and stand back from servers of another version.

The servers are stand-ins here; ``test_vllm.py`` and ``test_sglang.py`` need the real ones.
"""

from __future__ import annotations

import functools
import importlib
import logging
import os
import sys
import types
from pathlib import Path

import pytest
import torch

from deep_gemm_rocm.integrations import parts, sglang_plugin, vllm_plugin
from deep_gemm_rocm.integrations.shuffled import shuffle_if_possible

ROOT = Path(__file__).parents[2]


@pytest.fixture
def server(monkeypatch):
    """Puts modules of a server into this process, as ``name={"attribute": value}``."""
    for name in [name for name in sys.modules if name.partition(".")[0] in ("vllm", "sglang")]:
        monkeypatch.delitem(sys.modules, name)

    def put(**modules: dict[str, object]) -> None:
        for name, attributes in modules.items():
            dotted = name.replace("_", ".")
            module = types.ModuleType(dotted)
            module.__path__ = []
            vars(module).update(attributes)
            monkeypatch.setitem(sys.modules, dotted, module)

    return put


def put_vllm(server, *, is_rocm: bool, is_gfx942: bool) -> None:
    platform = types.SimpleNamespace(is_rocm=lambda: is_rocm)
    platforms = {"vllm_platforms": {"current_platform": platform}, "vllm_platforms_rocm": {}}
    platforms["vllm_platforms_rocm"]["on_gfx942"] = lambda: is_gfx942
    server(vllm={"__version__": "99.0"}, **platforms)


@pytest.mark.parametrize(("is_rocm", "is_gfx942"), [(False, False), (True, False)], ids=["vendor", "chip"])
def test_vllm_stays_as_it_is_elsewhere(server, is_rocm, is_gfx942):
    put_vllm(server, is_rocm=is_rocm, is_gfx942=is_gfx942)
    assert vllm_plugin.register() == {}


@pytest.mark.parametrize(("plugin", "name"), [(vllm_plugin, "DG_VLLM"), (sglang_plugin, "DG_SGLANG")])
def test_switched_off(server, monkeypatch, plugin, name):
    monkeypatch.setenv(name, "0")
    assert plugin.register() == {}  # without importing a server, which isn't there


def test_each_part_stands_back_from_another_vllm(server, caplog):
    put_vllm(server, is_rocm=True, is_gfx942=True)
    outcomes = vllm_plugin.register()
    told = [record.getMessage() for record in caplog.records]
    parts = (
        "FP8 linear layers", "FP8 experts", "MXFP4 layers and experts", "int4 layers and experts", "MLA attention",
        "the sparse indexer",
    )  # fmt: skip
    for line, part in zip(told, parts, strict=True):
        assert line.startswith(f"deep_gemm_rocm leaves {part} to vLLM 99.0, which is not as expected: ModuleNotFound")
        assert line.endswith(outcomes[part])
    assert "deep_gemm" not in sys.modules
    assert "VLLM_USE_DEEP_GEMM" not in os.environ


def put_sglang(server, *, is_gfx942: bool) -> None:
    utils = {"is_hip": lambda: True, "is_gfx942_supported": lambda: is_gfx942}
    server(sglang={"__version__": "9"}, sglang_srt={}, sglang_srt_utils=utils)


def test_sglang_stays_as_it_is_elsewhere(server):
    put_sglang(server, is_gfx942=False)
    assert sglang_plugin.register() == {}


def test_each_part_stands_back_from_another_sglang(server, caplog):
    put_sglang(server, is_gfx942=True)
    names = ["FP8 linear layers", "FP8 experts", "MXFP4 linear layers", "MXFP4 experts", "the sparse indexer"]
    assert list(sglang_plugin.register()) == names
    for record, part in zip(caplog.records, names, strict=True):
        expected = f"deep_gemm_rocm leaves {part} to SGLang 9, which is not as expected: ModuleNotFoundError"
        assert record.getMessage().startswith(expected)


@pytest.mark.parametrize("group", ["vllm.general_plugins", "sglang.srt.plugins"])
def test_the_entry_point_exists(group):
    text = (ROOT / "pyproject.toml").read_text()
    section = text.partition(f'[project.entry-points."{group}"]\n')[2].splitlines()
    module, _, name = section[0].partition(" = ")[2].strip('"').partition(":")
    assert callable(getattr(importlib.import_module(module), name))


def test_parameters_of_what_is_replaced():
    def theirs(a, b, *, c=1):
        pass

    parts.check_parameters(theirs, "a", "b", "c")
    parts.check_replaces(theirs, lambda a, b, c: None)
    with pytest.raises(parts.MovedError, match=r"theirs takes \(a, b, c\), not \(a, b\)"):
        parts.check_replaces(theirs, lambda a, b: None)


def test_a_part_that_fails_leaves_the_others(caplog):
    done = []

    def moved():
        raise parts.MovedError("f takes (x), not (y)")

    found = {"one": moved, "two": lambda: done.append("two")}
    with caplog.at_level(logging.INFO):
        outcomes = parts.install(found, "Server 3", logging.getLogger("server"))
    assert outcomes == {"one": "MovedError: f takes (x), not (y)", "two": "installed"}
    assert done == ["two"]
    assert [record.getMessage() for record in caplog.records] == [
        "deep_gemm_rocm leaves one to Server 3, which is not as expected: MovedError: f takes (x), not (y)",
        "deep_gemm_rocm provides two",
    ]


@pytest.mark.parametrize("far", [None, "w13_weight", "w2_weight"])
def test_weights_of_experts_are_shuffled_together_or_not_at_all(far):
    layer = types.SimpleNamespace()
    for name in ("w13_weight", "w2_weight"):
        setattr(layer, name, torch.full((2, 32, 64), 0x11, dtype=torch.uint8))
        scales = torch.full((2, 32, 4), 127, dtype=torch.uint8)
        scales[0, 0, 0] = 255 if name == far else 127
        setattr(layer, f"{name}_scale", scales)
    shuffle_if_possible(layer, "w13_weight", "w2_weight", replace=setattr)
    wanted = torch.int64 if far is None else torch.uint8
    assert layer.w13_weight.dtype == layer.w2_weight.dtype == wanted


@pytest.mark.parametrize(
    ("plugin", "modules"),
    [
        (
            vllm_plugin,
            {
                "vllm": {},
                "vllm_platforms": {"current_platform": types.SimpleNamespace(is_rocm=lambda: True)},
                "vllm_platforms_rocm": {},
            },
        ),
        (sglang_plugin, {"sglang": {}, "sglang_srt": {}, "sglang_srt_utils": {"is_hip": lambda: True}}),
    ],
    ids=["vllm", "sglang"],
)
def test_a_server_that_cannot_tell_its_chip_starts_without_the_plugin(server, caplog, plugin, modules):
    server(**modules)
    assert plugin.register() == {}
    (told,) = caplog.records
    assert "which is not as expected: ImportError: cannot import name" in told.getMessage()


def test_a_function_is_replaced_beside_modules_that_must_not_be_imported(server, monkeypatch):
    def function():
        return "theirs"

    server(vllm={"function": function})
    monkeypatch.setitem(sys.modules, "vllm.blocked", None)
    ours = functools.wraps(function)(lambda: "ours")
    parts.replace_wherever_imported(ours)
    assert sys.modules["vllm"].function() == "ours"
