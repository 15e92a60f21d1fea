"""Both toolchains compile a real kernel, and the choice between them."""

from __future__ import annotations

import functools
import io
import struct
import tempfile
import warnings
from pathlib import Path

import pytest
from elftools.elf.elffile import ELFFile
from helpers.paths import TEMPLATES

from deep_gemm_rocm.jit import CompileError, ToolchainError, cache, toolchain
from deep_gemm_rocm.jit.paths import include_dir
from deep_gemm_rocm.jit.render import render
from deep_gemm_rocm.jit.source import Source
from deep_gemm_rocm.runtime import session

VALUES = {"threads": 64, "factor": 2, "plus_one": False}


def ziglang():
    pytest.importorskip("ziglang")
    return toolchain.Ziglang.find()


def hipcc():
    if (found := able_hipcc()) is None:
        pytest.skip("no hipcc that can target gfx942")
    return found


@functools.cache
def able_hipcc() -> toolchain.Hipcc | None:
    found = toolchain.Hipcc.find()
    return None if found is None or found.why_unable() else found


@pytest.fixture(params=[ziglang, hipcc])
def compiler(request):
    return request.param()


def write(folder: Path, **values: int | bool | str) -> Path:
    kernel = render(TEMPLATES / "deep_gemm_rocm", "scale.hip.j2", VALUES | values)
    folder.mkdir()
    Source.collect("scale", kernel, TEMPLATES).write(folder)
    return folder


def build(compiler: toolchain.Toolchain, folder: Path, **values: int | bool | str) -> ELFFile:
    compiler.build(write(folder, **values))
    return ELFFile(io.BytesIO((folder / "kernel.so").read_bytes()))


def bundled(library: ELFFile) -> dict[str, bytes]:
    """The entries of the offload bundle in ``.hip_fatbin``, parsed as clang documents it."""
    data = library.get_section_by_name(".hip_fatbin").data()
    magic = b"__CLANG_OFFLOAD_BUNDLE__"
    assert data.startswith(magic)
    (count,) = struct.unpack_from("<Q", data, len(magic))
    position = len(magic) + 8
    found = {}
    for _ in range(count):
        offset, size, length = struct.unpack_from("<QQQ", data, position)
        position += 24 + length
        found[data[position - length : position].decode()] = data[offset : offset + size]
    return found


def test_the_library_needs_no_hip_library(compiler, tmp_path):
    library = build(compiler, tmp_path / "kernel")
    needed = [tag.needed for tag in library.get_section_by_name(".dynamic").iter_tags("DT_NEEDED")]
    assert all(name.startswith(("libc.so", "libgcc")) for name in needed)


def test_the_library_leaves_only_the_runtime_undefined(compiler, tmp_path):
    library = build(compiler, tmp_path / "kernel")
    symbols = list(library.get_section_by_name(".dynsym").iter_symbols())
    strong = {s.name for s in symbols if s["st_shndx"] == "SHN_UNDEF" and s["st_info"]["bind"] == "STB_GLOBAL"}
    assert strong - {"__cxa_atexit"} == {
        *("__hipRegisterFatBinary", "__hipUnregisterFatBinary", "__hipRegisterFunction"),
        *("__hipPopCallConfiguration", "hipLaunchKernel"),
    }
    assert "dg_launch" in {s.name for s in symbols if s["st_shndx"] != "SHN_UNDEF"}


def test_the_library_carries_a_gfx942_code_object(compiler, tmp_path):
    entries = bundled(build(compiler, tmp_path / "kernel"))
    host, device = entries
    assert host.startswith("host-x86_64-unknown-linux")
    assert device == "hipv4-amdgcn-amd-amdhsa--gfx942"
    code_object = ELFFile(io.BytesIO(entries[device]))
    assert code_object["e_machine"] == "EM_AMDGPU"
    assert code_object["e_flags"] & 0xFF == 0x4C  # EF_AMDGPU_MACH_AMDGCN_GFX942
    assert code_object["e_ident"]["EI_ABIVERSION"] == 3  # code object version 5


def test_the_same_source_gives_the_same_bytes(compiler, tmp_path):
    for name in ("one", "two"):
        build(compiler, tmp_path / name)
    assert (tmp_path / "one" / "kernel.so").read_bytes() == (tmp_path / "two" / "kernel.so").read_bytes()


def test_a_compile_error_names_command_source_and_reason(compiler, tmp_path):
    folder = write(tmp_path / "kernel")
    kernel = folder / "kernel.hip"
    kernel.write_text(kernel.read_text() + "\nint broken = nonsense;\n")
    with pytest.raises(CompileError) as failed:
        compiler.build(folder)
    assert failed.value.source == kernel
    assert Path(failed.value.command[0]) == compiler.program
    assert "use of undeclared identifier 'nonsense'" in failed.value.log
    for part in (str(kernel), str(compiler.program), "-O3", "nonsense"):
        assert part in str(failed.value)


def test_a_long_log_is_shown_from_its_end(tmp_path):
    error = CompileError(["cc"], tmp_path, "\n".join(f"line {number}" for number in range(1000)))
    assert "line 999" in str(error)
    assert "960 lines before" in str(error)
    assert "line 900" not in str(error)
    assert "line 900" in error.log


def test_headers_of_the_host_are_out_of_reach(compiler, tmp_path):
    folder = write(tmp_path / "kernel")
    (folder / "kernel.hip").write_text("#include <stdio.h>\n" + (folder / "kernel.hip").read_text())
    with pytest.raises(CompileError, match=r"'stdio\.h' file not found"):
        compiler.build(folder)


def test_ziglang_ignores_the_users_environment(tmp_path, monkeypatch):
    compiler = ziglang()
    build(compiler, tmp_path / "plain")
    plain = compiler.identity()
    monkeypatch.setenv("CCC_OVERRIDE_OPTIONS", "# O0")
    monkeypatch.setenv("PATH", "")
    monkeypatch.delenv("HOME", raising=False)
    build(ziglang(), tmp_path / "other")
    assert (tmp_path / "plain" / "kernel.so").read_bytes() == (tmp_path / "other" / "kernel.so").read_bytes()
    assert ziglang().identity() == plain


# ---- choosing

MODERN = "HIP version: 6.3.42131-fa1d09cbd\nAMD clang version 18.0.0git (roc-6.3.0 24455 f24aa3b4)"
OLD = "HIP version: 5.2.21153-0\nDebian clang version 15.0.6"
NVIDIA = "HIP version: 5.2.21153-0\nnvcc: NVIDIA (R) Cuda compiler driver"


@pytest.fixture
def bare(tmp_path, monkeypatch):
    """A machine without DG_TOOLCHAIN, and without any hipcc except those that a test installs."""
    for name in ("ROCM_PATH", "HIP_PATH", "DG_TOOLCHAIN", *toolchain.Hipcc._ENVIRONMENT):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    if Path("/opt/rocm/bin/hipcc").exists():
        pytest.skip("this machine's ROCm would be found")
    monkeypatch.setenv("DG_JIT_CACHE_DIR", str(tmp_path / "cache"))
    install(tmp_path / "bin" / "cc", ": > kernel.so")
    return monkeypatch


def install(program: Path, script: str) -> Path:
    program.parent.mkdir(parents=True, exist_ok=True)
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    return program


def install_hipcc(root: Path, version: str, compile_kernel: str = ": > kernel.o") -> Path:
    """Installs a hipcc that prints ``version``, and runs ``compile_kernel`` instead of compiling."""
    return install(root / "bin" / "hipcc", f"[ \"$1\" = --version ] && echo '{version}' && exit\n{compile_kernel}")


def no_ziglang(monkeypatch):
    monkeypatch.setattr(toolchain.Ziglang, "find", lambda: None)


def test_a_capable_hipcc_comes_first(bare, tmp_path):
    program = install_hipcc(tmp_path, MODERN)
    chosen = toolchain.choose()
    assert chosen.program == program
    assert chosen.version == "HIP 6.3.42131-fa1d09cbd, clang 18"


@pytest.mark.parametrize("variable", ["ROCM_PATH", "HIP_PATH"])
def test_hipcc_is_found_through_the_environment_first(bare, tmp_path, variable):
    install_hipcc(tmp_path, MODERN)
    program = install_hipcc(tmp_path / "rocm", MODERN)
    bare.setenv(variable, str(tmp_path / "rocm"))
    assert toolchain.choose().program == program


@pytest.mark.parametrize(("version", "reason"), [(OLD, "clang 17 or later"), (NVIDIA, "names no clang")])
def test_an_unable_hipcc_is_passed_over_aloud(bare, tmp_path, version, reason):
    pytest.importorskip("ziglang")
    program = install_hipcc(tmp_path, version)
    with pytest.warns(UserWarning, match=reason) as warned:
        assert toolchain.choose().name == "ziglang"
    assert str(program) in str(warned[0].message)
    assert toolchain.Hipcc.find().why_unable() in toolchain.installed()


@pytest.mark.parametrize("forced", [True, False])
def test_an_unable_hipcc_alone_is_an_error_that_says_so(bare, tmp_path, forced):
    program = install_hipcc(tmp_path, OLD)
    if forced:
        bare.setenv("DG_TOOLCHAIN", "hipcc")
    else:
        no_ziglang(bare)
    with pytest.raises(ToolchainError, match=r"can't compile for gfx942.*ROCm 6") as failed:
        toolchain.choose()
    assert str(program) in str(failed.value)


def test_without_any_compiler_the_error_says_what_to_install(bare):
    no_ziglang(bare)
    with pytest.raises(ToolchainError, match=r"Install ROCm 6.*pip install ziglang"):
        toolchain.choose()


def test_ziglang_is_chosen_without_a_warning(bare, tmp_path):
    pytest.importorskip("ziglang")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert toolchain.choose().name == "ziglang"
        install_hipcc(tmp_path, OLD)
        bare.setenv("DG_TOOLCHAIN", "ziglang")
        assert toolchain.choose().name == "ziglang"


@pytest.mark.parametrize("name", ["hipcc", "ziglang"])
def test_a_forced_toolchain_that_is_missing_is_an_error(bare, name):
    no_ziglang(bare)
    bare.setenv("DG_TOOLCHAIN", name)
    with pytest.raises(ToolchainError, match="hipcc is in ROCM_PATH" if name == "hipcc" else "pip install"):
        toolchain.choose()


def test_an_unknown_name_is_an_error(bare):
    bare.setenv("DG_TOOLCHAIN", "gcc")
    with pytest.raises(ToolchainError, match="hipcc or ziglang, not 'gcc'"):
        toolchain.choose()


@pytest.mark.parametrize("variable", ["HIPCC_COMPILE_FLAGS_APPEND", "HIPCC_LINK_FLAGS_APPEND", "HIP_CLANG_PATH"])
def test_what_hipcc_reads_from_the_environment_identifies_it(bare, tmp_path, variable):
    install_hipcc(tmp_path, MODERN)
    plain = toolchain.choose().identity()
    assert toolchain.choose().identity() == plain
    bare.setenv(variable, "-O1")
    assert toolchain.choose().identity() != plain


def test_flags_identify_the_compiler(bare, tmp_path, monkeypatch):
    program = install_hipcc(tmp_path, MODERN, ":")  # stands in for zig as well
    for compiler in (toolchain.Hipcc, toolchain.Ziglang):
        plain = compiler(program).identity()
        with monkeypatch.context() as patch:
            patch.setattr(toolchain, "_COMPILE_FLAGS", (*toolchain._COMPILE_FLAGS, "-g"))
            assert compiler(program).identity() != plain


def test_two_versions_of_rocm_are_two_compilers(bare, tmp_path):
    identities = []
    for folder, version in (("rocm-6.3", MODERN), ("rocm-6.4", MODERN.replace("6.3", "6.4"))):
        install_hipcc(tmp_path / folder, version)
        bare.setenv("ROCM_PATH", str(tmp_path / folder))
        identities.append(toolchain.choose().identity())
    assert identities[0] != identities[1]


def test_an_upgrade_under_the_same_path_is_another_compiler(bare, tmp_path):
    (tmp_path / "rocm").symlink_to(tmp_path / "rocm-6.3")
    bare.setenv("ROCM_PATH", str(tmp_path / "rocm"))
    install_hipcc(tmp_path / "rocm-6.3", MODERN)
    before = toolchain.choose().identity()
    install_hipcc(tmp_path / "rocm-6.4", MODERN.replace("6.3", "6.4"))
    (tmp_path / "rocm").unlink()
    (tmp_path / "rocm").symlink_to(tmp_path / "rocm-6.4")
    assert toolchain.choose().identity() != before


def test_devices_visible_to_a_rank_do_not_identify_the_compiler(bare, tmp_path):
    install_hipcc(tmp_path, MODERN)
    plain = toolchain.choose().identity()
    bare.setenv("HIP_VISIBLE_DEVICES", "3")
    bare.setenv("ROCR_VISIBLE_DEVICES", "3")
    assert toolchain.choose().identity() == plain


def test_no_shell_reads_what_is_passed(bare, tmp_path):
    root = tmp_path / "rocm 6;touch pwned $(touch pwned) `touch pwned`"
    install_hipcc(root, MODERN, ': > words\nfor word in "$@"; do echo "$word" >> words; done\n: > kernel.o')
    bare.setenv("ROCM_PATH", str(root))
    bare.setenv("HIPCC_COMPILE_FLAGS_APPEND", "; touch pwned")
    folder = tmp_path / "build & touch pwned"
    folder.mkdir()
    toolchain.choose().build(folder)
    assert (folder / "words").read_text().split("\n")[:-1] == [
        *toolchain._COMPILE_FLAGS, "-c", "kernel.hip", "-o", "kernel.o",
    ]  # fmt: skip
    assert (folder / "kernel.so").exists()
    assert not list(tmp_path.rglob("pwned"))


def test_hipcc_without_a_linker_says_so(bare, tmp_path):
    (tmp_path / "bin" / "cc").unlink()
    install_hipcc(tmp_path, MODERN)
    no_ziglang(bare)
    with pytest.raises(ToolchainError, match="C compiler to link with"):
        toolchain.choose()


def test_a_hipcc_that_fails_is_found_out_before_the_first_kernel(bare, tmp_path):
    """Then ziglang is chosen, unless DG_TOOLCHAIN forces hipcc."""
    pytest.importorskip("ziglang")
    bare.setattr(tempfile, "tempdir", str(tmp_path))
    program = install_hipcc(tmp_path, MODERN, "echo noted\necho 'fatal error: no lld' >&2\nexit 1")
    with pytest.warns(UserWarning, match=r"fatal error: no lld; using ziglang instead") as warned:
        assert toolchain.choose().name == "ziglang"
    assert str(program) in str(warned[0].message)
    assert any("no lld" in line for line in toolchain.installed())
    bare.setenv("DG_TOOLCHAIN", "hipcc")
    with pytest.raises(ToolchainError, match=r"can't compile for gfx942: fatal error: no lld$"):
        toolchain.choose()
    assert not list(cache.build_folders())


def test_an_able_hipcc_is_tried_once(bare, tmp_path):
    """The next session finds the probe's kernel in the cache."""
    install_hipcc(tmp_path, MODERN, f"echo tried >> {tmp_path}/tries\n: > kernel.o")
    for _ in range(2):
        with session.using(session.current().derived(toolchain.Compilers())):
            assert toolchain.choose().name == "hipcc"
            assert toolchain.choose().name == "hipcc"
    assert (tmp_path / "tries").read_text() == "tried\n"


def install_zig(root: Path, clang: int, zig: str) -> toolchain.Ziglang:
    script = f'[ "$1" = version ] && echo {zig} || echo clang version {clang}.0.6'
    return toolchain.Ziglang(install(root / "zig", script))


def test_a_ziglang_that_is_too_old_is_refused(bare, tmp_path):
    old = install_zig(tmp_path, clang=16, zig="0.11.0")
    bare.setattr(toolchain.Ziglang, "find", lambda: old)
    with pytest.raises(ToolchainError, match=r"ziglang 0\.11\.0 \(clang 16\).*pip install --upgrade ziglang"):
        toolchain.choose()
    assert list(toolchain.installed()) == [old.why_unable()]


@pytest.mark.parametrize(("clang", "preloads"), [(17, False), (19, False), (20, True), (22, True)])
def test_arguments_are_preloaded_where_the_compiler_does_it_safely(bare, tmp_path, clang, preloads):
    install_hipcc(tmp_path, f"HIP version: 6\nclang version {clang}.0.0")
    for compiler in (toolchain.Hipcc.find(), install_zig(tmp_path, clang, "0.1")):
        assert compiler.why_unable() is None
        assert ("-amdgpu-kernarg-preload-count=16" in compiler.identity()["flags"][0]) == preloads


@pytest.mark.parametrize("has_builtins", [0, 1])
def test_buffers_are_accessed_with_and_without_clangs_builtins(tmp_path, has_builtins):
    """The instructions are the same with and without the compiler's builtins."""
    compiler = ziglang()
    folder = tmp_path / "kernel"
    folder.mkdir()
    text = render(include_dir() / "deep_gemm_rocm", "compiler_probe.hip.j2", {})
    text = f"#ifdef __HIP_DEVICE_COMPILE__\n#define DG_HAS_LLVM_19_BUILTINS {has_builtins}\n#endif\n{text}"
    Source.collect("compiler_probe", text, include_dir()).write(folder)
    compiler.build(folder)
    listing = (folder / "device.s").read_text()
    words = [line.split()[0] for line in listing.splitlines() if line.strip()]
    assert sorted(word for word in words if word.startswith(("buffer_", "v_mfma", "s_barrier"))) == [
        *("buffer_load_dwordx2", "buffer_load_dwordx2", "buffer_store_dwordx2"),
        *("s_barrier", "v_mfma_f32_16x16x32_fp8_fp8"),
    ]


def test_a_compiler_that_cannot_be_started_says_so(tmp_path):
    program = tmp_path / "zig"
    program.write_text("not a program")
    program.chmod(0o755)
    with pytest.raises(ToolchainError, match="could not be started"):
        toolchain.Ziglang(program)
