"""Argument structures have the same fields at the same offsets in Python and C++."""

from __future__ import annotations

import ctypes
import importlib
import pkgutil
from ctypes import Structure

import pytest
from helpers.host_functions import compile_functions, including

from deep_gemm_rocm import launch

KINDS = {ctypes.c_void_p: "pointer", ctypes.c_int: "int", ctypes.c_uint: "unsigned", ctypes.c_int64: "int64_t",
         ctypes.c_float: "float", ctypes.c_double: "double"}  # fmt: skip

PRELUDE = """
using namespace deep_gemm_rocm;
template <class T> constexpr const char* kind = "structure";
template <class T> constexpr const char* kind<T*> = "pointer";
template <> constexpr const char* kind<int> = "int";
template <> constexpr const char* kind<unsigned> = "unsigned";
template <> constexpr const char* kind<int64_t> = "int64_t";
template <> constexpr const char* kind<float> = "float";
template <> constexpr const char* kind<double> = "double";
struct Field {
  const char* kind;
  int offset, size;
};
"""


class Field(Structure):
    """The structure of the same name in PRELUDE."""

    _fields_ = (("kind", ctypes.c_char_p), ("offset", ctypes.c_int), ("size", ctypes.c_int))


def structures() -> list[type[Structure]]:
    modules = [
        importlib.import_module(found.name) for found in pkgutil.walk_packages(launch.__path__, f"{launch.__name__}.")
    ]
    found = {
        value
        for module in modules
        for value in vars(module).values()
        if isinstance(value, type) and issubclass(value, Structure) and value.__module__ == module.__name__
    }
    return sorted(found, key=cpp_name)


def cpp_name(structure: type[Structure]) -> str:
    return structure.__name__.lstrip("_")


def includes(structure: type[Structure]) -> list[str]:
    return including(f"struct {cpp_name(structure)} {{")


def functions(structure: type[Structure]) -> str:
    """C++ functions that return the structure's size and fields. They only compile if Python knows all fields, since a
    structured binding must name each."""
    name, fields = cpp_name(structure), [field for field, *_ in structure._fields_]
    known = "".join(
        f"{{kind<decltype({name}::{field})>, __builtin_offsetof({name}, {field}), sizeof({name}::{field})}}, "
        for field in fields
    )
    return f"""
void takes_all({name} all) {{ auto [{", ".join(f"{field}_" for field in fields)}] = all; }}
extern "C" int size_of_{name}() {{ return sizeof({name}); }}
extern "C" Field field_of_{name}(int number) {{
  constexpr Field kFields[] = {{{known}}};
  return kFields[number];
}}
"""


def test_every_structure_is_known():
    names = [cpp_name(structure) for structure in structures()]
    assert {"GemmArguments", "AttentionArguments", "DecodeArguments", "MqaLogitsArguments"} < set(names)
    assert len(set(names)) == len(names)


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    headers = dict.fromkeys(header for structure in structures() for header in includes(structure))
    source = "\n".join([*headers, PRELUDE, *map(functions, structures())])
    return compile_functions(tmp_path_factory.mktemp("argument_structures"), source)


@pytest.mark.parametrize("structure", structures(), ids=cpp_name)
def test_python_and_cpp_have_the_same_structure(library, structure):
    name = cpp_name(structure)
    assert len(includes(structure)) == 1, f"{name} must be defined in one header"
    field_of = getattr(library, f"field_of_{name}")
    field_of.restype = Field
    in_cpp = [
        (field.kind.decode(), field.offset, field.size) for field in map(field_of, range(len(structure._fields_)))
    ]
    in_python = [
        (KINDS.get(kind, "structure"), getattr(structure, field).offset, getattr(structure, field).size)
        for field, kind, *_ in structure._fields_
    ]
    assert in_python == in_cpp
    assert ctypes.sizeof(structure) == getattr(library, f"size_of_{name}")()
