"""Modules import only from their own layer and those below; docs/design.md draws the layers."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[2] / "deep_gemm_rocm"

# From the uppermost to the lowest. Folders in the same layer don't import each other.
LAYERS = (
    ("__main__",),
    ("cli",),
    ("benchmarks", "calibration", "integrations", "pytest_plugin", "selftest"),
    ("testing", "workbench"),
    ("api",),
    ("launch",),
    ("heuristics",),
    ("problems",),
    ("jit",),
    ("runtime",),
    ("simulator",),
    ("checks", "files", "forking", "logs"),
)
RANK = {name: rank for rank, layer in enumerate(reversed(LAYERS)) for name in layer}
# The package's own namespace has every public function. Only programs may use it.
USERS_OF_THE_WHOLE = {"__main__", "cli"}


def module_name(path: Path, root: Path) -> str:
    parts = path.relative_to(root.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imports(tree: ast.Module, package: str, modules: set[str]) -> Iterator[tuple[int, str, str]]:
    """Line, imported module and the name that is bound to it or taken from it, of this package's modules only.

    Imports within functions and under ``TYPE_CHECKING`` count.
    """
    root = package.partition(".")[0]
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found = [(alias.name, alias.asname or alias.name) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            start = package.split(".")[: len(package.split(".")) - node.level + 1] if node.level else []
            base = ".".join([*start, *filter(None, [node.module])])
            names = [(f"{base}.{alias.name}", alias) for alias in node.names]
            found = [(full if full in modules else base, alias.asname or alias.name) for full, alias in names]
        else:
            continue
        for module, name in found:
            if module.partition(".")[0] == root:
                yield node.lineno, module, name


def violations(root: Path) -> list[str]:
    """Imports that go up or sideways, and private names of other modules, as lines that name both modules."""
    paths = {module_name(path, root): path for path in sorted(root.rglob("*.py"))}
    found = []
    for name, path in paths.items():
        tree = ast.parse(path.read_text())
        package = name if path.name == "__init__.py" else name.rpartition(".")[0]
        modules = {}
        for line, module, bound in imports(tree, package, set(paths)):
            modules[bound] = module
            where = f"{name}:{line} imports {module}"
            found += [f"{where}: {why}" for why in [why_not(name, module)] if why]
            if is_private(bound) and module != name:
                found.append(f"{where}: {bound} is private there")
        for node in ast.walk(tree):
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and is_private(node.attr):
                module = modules.get(node.value.id)
                if module in paths and module.rpartition(".")[2] == node.value.id:
                    found.append(f"{name}:{node.lineno} uses {module}.{node.attr}, which is private there")
    return found


def is_private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__")


def why_not(importer: str, imported: str) -> str:
    """Why a module mustn't import another one; empty if it may."""
    _, _, below = importer.partition(".")
    if not below:  # the package's __init__, which gathers the public names
        return ""
    own, other = below.split(".")[0], imported.partition(".")[2].split(".")[0]
    if not other:
        return "" if own in USERS_OF_THE_WHOLE else "only programs may use the whole package"
    if own == other:
        return ""
    if RANK[own] < RANK[other]:
        return f"{own} is a layer below {other}"
    return f"{own} and {other} are in the same layer" if RANK[own] == RANK[other] else ""


def test_every_module_is_in_a_layer():
    found = {path.stem for path in PACKAGE.glob("*.py")} - {"__init__"}
    found |= {path.parent.name for path in PACKAGE.glob("*/__init__.py")}
    assert found == set(RANK)


def test_imports_go_down():
    found = violations(PACKAGE)
    assert not found, "\n".join(found)


@pytest.mark.parametrize(
    ("module", "text", "message"),
    [
        ("jit/a.py", "from ..api import gemm", "toy.jit.a:1 imports toy.api.gemm: jit is a layer below api"),
        ("jit/a.py", "def f():\n    import toy.api.gemm", "toy.jit.a:2 imports toy.api.gemm: jit is a layer below api"),
        ("jit/a.py", "if TYPE_CHECKING:\n    from ..api.gemm import x", "toy.jit.a:2 imports toy.api.gemm: jit is"),
        ("jit/a.py", "from .. import fp8", "toy.jit.a:1 imports toy: only programs may use the whole package"),
        ("benchmarks/a.py", "from .. import selftest", "benchmarks and selftest are in the same layer"),
        ("cli/a.py", "from ..api.gemm import _x", "toy.cli.a:1 imports toy.api.gemm: _x is private there"),
        ("cli/a.py", "from ..api import gemm\ngemm._x()", "toy.cli.a:2 uses toy.api.gemm._x, which is private there"),
        ("cli/a.py", "from ..api import gemm\nfrom . import b\nimport torch\nfrom .. import fp8\ngemm.x()", ""),
        ("jit/a.py", "from ..runtime import hip\nfrom .b import c", ""),
    ],
)
def test_a_wrong_import_is_found(tmp_path, module, text, message):
    root = tmp_path / "toy"
    for name in ("api/gemm.py", "selftest/__init__.py", "runtime/hip.py", "jit/b.py", "cli/b.py", "benchmarks/b.py"):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text("")
    for folder in ("", "api", "runtime", "jit", "cli", "benchmarks"):
        (root / folder / "__init__.py").write_text("")
    (root / module).write_text(text)
    found = violations(root)
    assert len(found) == bool(message), found
    assert message in "".join(found)
