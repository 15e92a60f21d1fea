"""Plug-ins do nothing where they should, and stand back from servers of another version. The servers are stand-ins here;
``test_vllm.py`` and ``test_sglang.py`` need the real ones."""

from __future__ import annotations

import importlib
import logging
import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from deep_gemm_rocm.integrations import parts

ROOT = Path(__file__).parents[2]
PLATFORMS = """
    class current_platform:
        is_rocm = staticmethod(lambda: {is_rocm})
"""


def run(folder: Path, program: str, files: dict[str, str], **environment: str) -> str:
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(textwrap.dedent(text))
    paths = os.pathsep.join([str(folder), str(ROOT), os.environ.get("PYTHONPATH", "")])
    command = [sys.executable, "-c", textwrap.dedent(program)]
    variables = {name: value for name, value in os.environ.items() if not name.startswith("DG_TEST_")}
    done = subprocess.run(
        command, env=variables | {"PYTHONPATH": paths} | environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout + done.stderr


def vllm(*, is_rocm: bool, is_gfx942: bool) -> dict[str, str]:
    return {
        "vllm/__init__.py": "__version__ = '99.0'",
        "vllm/platforms/__init__.py": PLATFORMS.format(is_rocm=is_rocm),
        "vllm/platforms/rocm.py": f"def on_gfx942(): return {is_gfx942}",
    }


REGISTER = """
    import logging, sys
    logging.basicConfig(format="%(name)s %(levelname)s %(message)s")
    from deep_gemm_rocm.integrations.vllm_plugin import register
    outcomes = register()
    print(sorted(outcomes), "vllm" in sys.modules, "deep_gemm" in sys.modules)
"""


@pytest.mark.parametrize(
    ("is_rocm", "is_gfx942", "environment", "printed"),
    [
        (True, True, {"DG_VLLM": "0"}, "[] False False"),
        (False, False, {}, "[] True False"),
        (True, False, {}, "[] True False"),
    ],
    ids=["switched off", "another vendor", "another chip"],
)
def test_nothing_happens_elsewhere(tmp_path, is_rocm, is_gfx942, environment, printed):
    files = vllm(is_rocm=is_rocm, is_gfx942=is_gfx942)
    assert run(tmp_path, REGISTER, files, **environment).strip() == printed


def test_each_part_stands_back_from_another_vllm(tmp_path):
    lines = run(tmp_path, REGISTER, vllm(is_rocm=True, is_gfx942=True)).splitlines()
    printed = [line for line in lines if not line.startswith("vllm.deep_gemm_rocm WARNING")]
    assert printed == ["['FP8 experts', 'FP8 linear layers', 'the sparse indexer'] True False"]
    for part in ("FP8 linear layers", "FP8 experts", "the sparse indexer"):
        told = [line for line in lines if f"leaves {part} to vLLM 99.0, which is not as expected:" in line]
        assert len(told) == 1
        assert "ModuleNotFoundError" in told[0]


def test_the_entry_point_exists():
    text = (ROOT / "pyproject.toml").read_text()
    section = text.partition('[project.entry-points."vllm.general_plugins"]\n')[2].splitlines()
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
