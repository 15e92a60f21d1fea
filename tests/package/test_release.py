"""What is published: the version, the declared requirements, the source distribution, and what the wheel needs."""

from __future__ import annotations

import importlib.metadata
import os
import re
import runpy
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest
from helpers.elf_symbols import all_symbols
from packaging.requirements import Requirement
from packaging.version import Version

import deep_gemm_rocm as dg
from deep_gemm_rocm import simulator

ROOT = Path(__file__).parents[2]
LIBRARIES = Path(simulator.__file__).parent / "lib"
PROJECT = (ROOT / "pyproject.toml").read_text()
VERSIONS = (ROOT / ".ci/versions").read_text()
HOME = "https://forge.example/owner/name"
WORKFLOW = (ROOT / ".github/workflows/release.yml").read_text()


def requirements(name: str) -> list[Requirement]:
    """All that pyproject.toml says of a package."""
    found = [Requirement(text) for text in re.findall(rf'"({name}(?![\w-])[^"]*)"', PROJECT)]
    assert found
    return found


def test_the_version_is_said_once():
    assert Version(dg.__version__)
    assert not re.search(r"^version *= *\"", PROJECT, re.MULTILINE)
    assert f"## {dg.__version__} (" in (ROOT / "CHANGELOG.md").read_text()


def test_the_command_line_prints_the_version():
    command = [sys.executable, "-m", "deep_gemm_rocm", "--version"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, f"deep_gemm_rocm {dg.__version__}\n")


def is_newer_minor(requirement: Requirement, tested: Version) -> bool:
    """Whether the next minor version is allowed."""
    return requirement.specifier.contains(f"{tested.major}.{tested.minor + 1}.0")


def test_bounds_of_torch_are_what_is_tested():
    (oldest,) = re.findall(r"torch==([\d.]+)", VERSIONS)
    (newest,) = set(re.findall(r"torch==([\d.]+)", (ROOT / "README.md").read_text()))
    (torch,) = requirements("torch")
    for version in (oldest, newest, f"{newest}+rocm7.0"):
        assert torch.specifier.contains(version)
    assert not torch.specifier.contains("2.3.1")
    assert not is_newer_minor(torch, Version(newest))
    assert set(re.findall(r"torch==([\d.]+)", WORKFLOW)) == {oldest, newest}


def test_bounds_of_ziglang_are_what_is_tested():
    oldest = re.search(r"for release in ([\d.]+) ", VERSIONS)[1]
    others = re.search(r"between=\(([\d. ]+)\)", VERSIONS)[1].split()
    tested = sorted(map(Version, [oldest, *others]))
    for ziglang in requirements("ziglang"):
        assert all(map(ziglang.specifier.contains, tested))
        assert not ziglang.specifier.contains("0.12.0")
        try:
            newest = Version(importlib.metadata.version("ziglang"))
        except importlib.metadata.PackageNotFoundError:
            pytest.skip("no ziglang is installed")
        assert not is_newer_minor(ziglang, max(newest, *tested))


def test_actions_are_pinned():
    used = re.findall(r"uses: (\S+)", WORKFLOW)
    assert used
    assert all(re.fullmatch(r"[\w-]+/[\w-]+@v\d+\.\d+\.\d+", action) for action in used)


@pytest.mark.parametrize(("tag", "complaint"), [("v9.9", "but the package is version"), ("", "unreleased")])
def test_a_release_needs_its_tag_and_a_date(tmp_path, tag, complaint):
    (tmp_path / ".ci").mkdir()
    shutil.copy(ROOT / ".ci/release", tmp_path / ".ci")
    (tmp_path / "deep_gemm_rocm").mkdir()
    shutil.copy(ROOT / "deep_gemm_rocm/__init__.py", tmp_path / "deep_gemm_rocm")
    (tmp_path / "CHANGELOG.md").write_text(f"## {dg.__version__} (unreleased)\n")
    command = [tmp_path / ".ci/release", tag or f"v{dg.__version__}"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 1
    assert (complaint if tag else "CHANGELOG.md has no section") in done.stdout
    assert "Source distribution" not in done.stdout


def setup_command(folder: Path, *command: str, **environment: str) -> None:
    inherited = {name: value for name, value in os.environ.items() if name != "DG_PROJECT_HOME"}
    done = subprocess.run(
        [sys.executable, "setup.py", "-q", *command],
        cwd=folder, env=inherited | environment, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.fixture(scope="module")
def sdist(tmp_path_factory) -> Path:
    """The source distribution, unpacked."""
    pytest.importorskip("setuptools", "77", reason="builds a source distribution")
    folder = tmp_path_factory.mktemp("sdist")
    built = shutil.ignore_patterns(".git", "build", "dist", "lib", ".venv", ".*_cache", ".hypothesis", "__pycache__")
    shutil.copytree(ROOT, folder / "checkout", ignore=built)
    setup_command(folder / "checkout", "sdist", "-d", str(folder), DG_PROJECT_HOME=HOME)
    (archive,) = folder.glob("*.tar.gz")
    assert archive.name == f"deep_gemm_rocm-{dg.__version__}.tar.gz"
    filtered = {"filter": "data"} if hasattr(tarfile, "data_filter") else {}  # since Python 3.11.4
    with tarfile.open(archive) as file:
        file.extractall(folder, **filtered)
    return folder / f"deep_gemm_rocm-{dg.__version__}"


@pytest.mark.slow
def test_the_source_distribution_has_every_file(sdist):
    if not (ROOT / ".git").exists():
        pytest.skip("needs a checkout")
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    missing = [name for name in listed.splitlines() if not (sdist / name).is_file() and (ROOT / name).is_file()]
    assert set(missing) <= {".gitignore"}
    assert not [path for path in sdist.rglob("*") if path.suffix in (".so", ".pyc")]


@pytest.mark.slow
def test_the_tests_of_the_source_distribution_run(sdist):
    """With the wheel's simulator, which isn't compiled again."""
    shutil.copytree(LIBRARIES, sdist / "deep_gemm_rocm/simulator/lib", dirs_exist_ok=True)
    tests = ["tests/api/test_layout.py", "tests/mistakes/test_planted_mistakes.py"]
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", *tests]
    done = subprocess.run(
        command, cwd=sdist, env=os.environ | {"PYTHONPATH": str(sdist)}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert " passed" in done.stdout


@pytest.mark.parametrize("file", ["LICENSE", "NOTICE"])
def test_licences_are_packed(sdist, file):
    assert (sdist / file).is_file()
    assert f"License-File: {file}" in (sdist / "PKG-INFO").read_text()


def test_the_metadata_are_complete(sdist):
    metadata = (sdist / "PKG-INFO").read_text()
    assert f"Version: {dg.__version__}\n" in metadata
    assert "License-Expression: MIT\n" in metadata


def urls_after(folder: Path, *command: str) -> set[str]:
    """The labelled URLs of the metadata that setup.py writes without knowing the repository's address."""
    setup_command(folder, *command)
    (metadata,) = folder.glob("*.egg-info/PKG-INFO")
    return set(re.findall("^Project-URL: (.*)$", metadata.read_text(), re.MULTILINE))


def test_a_source_distribution_keeps_the_urls_of_its_release(sdist):
    upstream = urls_after(sdist.parent / "checkout", "egg_info")
    assert "DeepGEMM, https://github.com/deepseek-ai/DeepGEMM" in upstream
    own = {f"Source, {HOME}", f"Documentation, {HOME}/tree/HEAD/docs", f"Issues, {HOME}/issues"}
    own.add(f"Changelog, {HOME}/blob/HEAD/CHANGELOG.md")
    assert urls_after(sdist, "egg_info") == upstream | own
    assert not upstream & own


@pytest.fixture
def check_wheel():
    return runpy.run_path(str(ROOT / ".ci/check_wheel.py"))["check"]


def wheel_of(folder: Path, tag: str, library: Path, name: str = "simulator/lib/library.so") -> Path:
    wheel = folder / f"deep_gemm_rocm-{dg.__version__}-{tag}.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.write(library, f"deep_gemm_rocm/{name}")
    return wheel


def newest_glibc(library: Path) -> int:
    """The minor version of the newest symbol that the library needs."""
    versions = [re.fullmatch(r"GLIBC_2\.(\d+)(\.\d+)?", symbol.version) for symbol in all_symbols(library)]
    return max(int(version[1]) for version in versions if version)


def test_a_newer_glibc_is_noticed(check_wheel, tmp_path):
    library = LIBRARIES / "libamdhip64.so"
    newest = newest_glibc(library)
    assert check_wheel(wheel_of(tmp_path, f"py3-none-manylinux_2_{newest}_x86_64", library)) == []
    (complaint,) = check_wheel(wheel_of(tmp_path, f"py3-none-manylinux_2_{newest - 1}_x86_64", library))
    assert f"library.so needs GLIBC_2.{newest}" in complaint


def compiled(folder: Path, source: str, *flags: str) -> Path:
    pytest.importorskip("ziglang")
    folder.mkdir(exist_ok=True)
    (folder / "library.c").write_text(source)
    command = [sys.executable, "-m", "ziglang", "cc", "-target", "x86_64-linux-gnu", "-nostdlib", "-shared", "-fPIC"]
    subprocess.run([*command, "library.c", "-o", "library.so", *flags], cwd=folder, check=True, capture_output=True)
    return folder / "library.so"


def test_other_libraries_and_pythons_are_noticed(check_wheel, tmp_path):
    other = compiled(tmp_path / "other", "void other(void) {}\n", "-Wl,-soname,libother.so")
    source = "void other(void), PyErr_Clear(void); void probe(void) { other(), PyErr_Clear(); }\n"
    library = compiled(tmp_path, source, str(other), "-Wl,-rpath,/opt", "-Wl,--allow-shlib-undefined")
    found = check_wheel(wheel_of(tmp_path, "py3-none-manylinux_2_28_x86_64", library))
    assert [what.partition("library.so ")[2] for what in found] == [
        "needs libother.so", "has a run path", "needs a Python",
    ]  # fmt: skip


def test_only_modules_of_the_stable_abi_may_need_a_python(check_wheel, tmp_path):
    source = "void PyErr_Clear(void); void probe(void) { PyErr_Clear(); }\n"
    library = compiled(tmp_path, source, "-Wl,--allow-shlib-undefined")
    tag = "py3-none-manylinux_2_28_x86_64"
    assert check_wheel(wheel_of(tmp_path, tag, library, "launch/module.abi3.so")) == []
    assert check_wheel(wheel_of(tmp_path, tag, library)) == ["deep_gemm_rocm/simulator/lib/library.so needs a Python"]


def test_a_wheel_that_names_another_source_is_noticed(check_wheel, tmp_path):
    wheel = wheel_of(tmp_path, "py3-none-manylinux_2_99_x86_64", LIBRARIES / "libamdhip64.so")
    with zipfile.ZipFile(wheel, "a") as archive:
        archive.writestr("deep_gemm_rocm-0.dist-info/METADATA", f"Project-URL: Source, {HOME}\n")
    assert check_wheel(wheel) == check_wheel(wheel, HOME) == []
    (complaint,) = check_wheel(wheel, f"{HOME}2")
    assert "doesn't name its source" in complaint


@pytest.mark.parametrize("tag", ["py3-none-linux_x86_64", "cp312-cp312-manylinux_2_28_x86_64"])
def test_other_tags_are_refused(check_wheel, tmp_path, tag):
    with pytest.raises(SystemExit, match="must be tagged"):
        check_wheel(wheel_of(tmp_path, tag, ROOT / "LICENSE"))
