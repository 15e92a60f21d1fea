"""Calls every function of the HIP API with invalid pointers. It is a separate program, because it may crash.

``python wild_pointers.py CODE_OBJECT FIRST`` tests the functions from number FIRST on. It prints a line before it calls
a function, and a line of JSON for each call with a wrong answer.
"""

from __future__ import annotations

import ctypes
import json
import mmap
import re
import sys
import tempfile
from ctypes import addressof, byref, c_char, c_int, c_size_t, c_uint, c_ulonglong, c_void_p
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from deep_gemm_rocm import simulator

SOURCES = Path(simulator.__file__).parent / "csrc" / "hip"
PAGE = mmap.PAGESIZE


# ---- signatures, from the sources


@dataclass(frozen=True)
class Parameter:
    type: str
    name: str

    @property
    def handle(self) -> str | None:
        match = re.fullmatch(r"hip(Stream|Event|Module|Function|Graph|GraphNode|GraphExec|MemPool|UserObject|Ctx)_t",
                             self.type)  # fmt: skip
        return match[1] if match else None

    @property
    def is_probed(self) -> bool:
        return bool(re.match(r"(In|Out|InOut)<|Text\b", self.type))

    @property
    def is_written(self) -> bool:
        return bool(re.match(r"(Out|InOut)<", self.type))

    @property
    def is_pointer(self) -> bool:
        return self.is_probed or self.type.endswith("*") or self.type in ("hipDeviceptr_t", "hipHostFn_t", "callback")


@dataclass(frozen=True)
class Function:
    name: str
    returns: str
    parameters: tuple[Parameter, ...]


def split(parameters: str) -> list[str]:
    parts, depth = [""], 0
    for character in parameters:
        depth += {"<": 1, "(": 1, ">": -1, ")": -1}.get(character, 0)
        if character == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += character
    return [" ".join(part.split()) for part in parts if part.strip()]


def parameter(text: str) -> Parameter:
    if "(*" in text:
        return Parameter("callback", re.search(r"\(\*(\w+)\)", text)[1])
    match = re.fullmatch(r"(.*?[\w>*&])(?: |(?<=[*&]))(\w+)", text)
    types = {"int", "unsigned", "size_t", "uint32_t", "hipCtx_t", "hipMemcpyKind", "void*"}
    if match is None or text in types:
        return Parameter(text, "")
    return Parameter(match[1].strip(), match[2])


def functions() -> list[Function]:
    found = []
    for path in sorted(SOURCES.rglob("*.cpp")):
        source = re.sub(r"//.*", "", path.read_text())
        for match in re.finditer(r"^HIP_API ([\w ]+?\**)[ *]+(\w+)\(", source, re.MULTILINE):
            end, depth = match.end(), 1
            while depth:
                depth += {"(": 1, ")": -1}.get(source[end], 0)
                end += 1
            parameters = tuple(map(parameter, split(source[match.end() : end - 1])))
            found.append(Function(match[2], match[1], parameters))
        for match in re.finditer(r"^HIP_FILL_ROWS\((\w+), (\w+)\)", source, re.MULTILINE):
            text = f"hipDeviceptr_t destination, size_t pitch, {match[2]} value, size_t width, size_t height"
            rows = tuple(map(parameter, split(text)))
            found.append(Function(match[1], "hipError_t", rows))
            found.append(Function(match[1] + "Async", "hipError_t", (*rows, Parameter("hipStream_t", "stream"))))
    return [function for function in found if "##" not in function.name]


# ---- structures that are passed by value, or pointed to


class Dim3(ctypes.Structure):
    _fields_ = [("x", c_uint), ("y", c_uint), ("z", c_uint)]


class Extent(ctypes.Structure):
    _fields_ = [("width", c_size_t), ("height", c_size_t), ("depth", c_size_t)]


class Pitched(ctypes.Structure):
    _fields_ = [("ptr", c_void_p), ("pitch", c_size_t), ("xsize", c_size_t), ("ysize", c_size_t)]


class Copy3D(ctypes.Structure):
    _fields_ = [("srcArray", c_void_p), ("srcPos", Extent), ("srcPtr", Pitched), ("dstArray", c_void_p),
                ("dstPos", Extent), ("dstPtr", Pitched), ("extent", Extent), ("kind", c_int)]  # fmt: skip


class Copy2D(ctypes.Structure):
    _fields_ = [
        *((side + name, kind) for side in ("src", "dst") for name, kind in [
            ("X", c_size_t), ("Y", c_size_t), ("Type", c_int), ("Host", c_void_p), ("Device", c_void_p),
            ("Array", c_void_p), ("Pitch", c_size_t)]),
        ("width", c_size_t), ("height", c_size_t)]  # fmt: skip


class Kernel(ctypes.Structure):
    _fields_ = [("block", Dim3), ("extra", c_void_p), ("func", c_void_p), ("grid", Dim3),
                ("kernelParams", c_void_p), ("lds", c_uint)]  # fmt: skip


class Fill(ctypes.Structure):
    _fields_ = [("dst", c_void_p), ("elementSize", c_uint), ("height", c_size_t), ("pitch", c_size_t),
                ("value", c_uint), ("width", c_size_t)]  # fmt: skip


class Host(ctypes.Structure):
    _fields_ = [("fn", c_void_p), ("userData", c_void_p)]


class Node(ctypes.Structure):
    _fields_ = [("type", c_int), ("reserved", c_int * 3), ("contents", c_ulonglong * 29), ("more", c_ulonglong)]


class Launch(ctypes.Structure):
    """The structure of hipLaunchKernelExC. In that of hipDrvLaunchKernelEx, `lds` has 32 bits, at the same offset."""

    _fields_ = [("grid", Dim3), ("block", Dim3), ("lds", c_size_t), ("stream", c_void_p), ("attrs", c_void_p),
                ("numAttrs", c_uint)]  # fmt: skip


class PoolProperties(ctypes.Structure):
    _fields_ = [("allocType", c_int), ("handleTypes", c_int), ("location", c_int * 2), ("security", c_void_p),
                ("maxSize", c_size_t), ("reserved", c_char * 56)]  # fmt: skip


class Wrapper(ctypes.Structure):
    _fields_ = [("magic", c_uint), ("version", c_uint), ("binary", c_void_p), ("unused", c_void_p)]


HostFunction = ctypes.CFUNCTYPE(None, c_void_p)
Callback = ctypes.CFUNCTYPE(None, c_void_p, c_int, c_void_p)


# ---- memory that can't be used


class Pages:
    """Three pages. The middle one may be accessed as `protection` says, the others not at all."""

    def __init__(self, libc: ctypes.CDLL, protection: int) -> None:
        libc.mmap.restype = c_void_p
        anonymous = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
        self.begin = libc.mmap(None, c_size_t(3 * PAGE), 0, anonymous, -1, c_size_t(0)) + PAGE
        assert libc.mprotect(c_void_p(self.begin), c_size_t(PAGE), protection) == 0

    @property
    def end(self) -> int:
        return self.begin + PAGE


@dataclass
class World:
    """The library, and objects that calls refer to. `State` has the objects that calls may use up."""

    hip: ctypes.CDLL
    code: bytes
    kept: list[Any] = field(default_factory=list)

    def __post_init__(self) -> None:
        libc = ctypes.CDLL(None)
        self.usable, self.read_only = Pages(libc, mmap.PROT_READ | mmap.PROT_WRITE), Pages(libc, mmap.PROT_READ)
        self.wild = {
            "wild": 0x10,
            "not canonical": 0xDEAD_BEEF_DEAD_BEE8,
            "last": 2**64 - 1,
            "no access": self.usable.end,
            "across the end of a page": self.usable.end - 1,
        }
        self.scratch = ctypes.create_string_buffer(8192)
        self.image = ctypes.create_string_buffer(self.code, len(self.code))
        folder = Path(self.keep(tempfile.TemporaryDirectory()).name)
        self.path, self.dot = folder / "code.co", folder / "graph.dot"
        self.path.write_bytes(self.code)
        self.host_function, self.callback = HostFunction(lambda _: None), Callback(lambda *_: None)
        self.wrapper = Wrapper(0x48495046, 1, addressof(self.image), None)
        self.stub, self.shadow = ctypes.create_string_buffer(16), ctypes.create_string_buffer(16)

    def register(self) -> int:
        """Registers a kernel and a variable like compiled host code. The addresses of stub and shadow are only IDs."""
        register = self.hip["__hipRegisterFatBinary"]
        register.restype = c_void_p
        binary = c_void_p(register(byref(self.wrapper)))
        self.hip["__hipRegisterFunction"](binary, self.stub, b"probe", b"probe", -1, *[None] * 5)
        self.hip["__hipRegisterVar"](binary, self.shadow, b"shared", b"shared", 0, c_size_t(16), 0, 0)
        return binary.value or 0

    def keep(self, thing: Any) -> Any:
        self.kept.append(thing)
        return thing

    def array(self, *pointers: int | None) -> Any:
        return self.keep((c_void_p * len(pointers))(*pointers))


class State:
    """Fresh handles and memory for the calls of one function."""

    def __init__(self, world: World, function: Function) -> None:
        self.world, self.function = world, function
        hip = world.hip

        def made(call: str, *arguments: Any) -> int:
            out = c_void_p()
            status = getattr(hip, call)(byref(out), *arguments)
            assert status == 0, (function.name, call, status)
            return out.value or 0

        self.binary = world.register()
        self.memory = made("hipMalloc", c_size_t(4096))
        self.pinned = made("hipHostMalloc", c_size_t(4096), 0)
        self.stream = made("hipStreamCreate")
        self.event, self.other_event = made("hipEventCreate"), made("hipEventCreate")
        for event in (self.event, self.other_event):
            assert hip.hipEventRecord(c_void_p(event), None) == 0
        self.pool = made("hipMemPoolCreate", byref(PoolProperties(location=(1, 0))))
        self.module = made("hipModuleLoadData", world.image)
        self.kernel = made("hipModuleGetFunction", c_void_p(self.module), b"probe")
        self.user_object = made("hipUserObjectCreate", None, world.host_function, 1, 1)
        # World.keep keeps the pointed-to objects alive.
        self.pointer, self.number = world.keep(c_void_p(self.memory)), world.keep(c_int(1))
        self.arguments = world.array(addressof(self.pointer), addressof(self.number))
        self.kernel_node_params = Kernel(Dim3(64, 1, 1), None, self.kernel, Dim3(1, 1, 1), addressof(self.arguments), 0)
        place = Pitched(self.memory, 64, 64, 4)
        self.copy = Copy3D(srcPtr=place, dstPtr=Pitched(self.memory + 1024, 64, 64, 4), extent=Extent(64, 2, 1), kind=4)
        self.fill = Fill(self.memory, 4, 1, 0, 7, 16)
        self.host = Host(ctypes.cast(world.host_function, c_void_p).value, None)
        self.graph, self.child = made("hipGraphCreate", 0), made("hipGraphCreate", 0)
        name, graph = function.name, c_void_p(self.graph)
        if re.search("Kernel|SetEnabled|GetEnabled|hipGraph(Exec)?NodeSetParams", name):
            node = made("hipGraphAddKernelNode", graph, None, c_size_t(0), byref(self.kernel_node_params))
        elif "Memcpy" in name:
            node = made("hipGraphAddMemcpyNode", graph, None, c_size_t(0), byref(self.copy))
        elif "Memset" in name:
            node = made("hipGraphAddMemsetNode", graph, None, c_size_t(0), byref(self.fill))
        elif "Host" in name:
            node = made("hipGraphAddHostNode", graph, None, c_size_t(0), byref(self.host))
        elif "ChildGraph" in name:
            node = made("hipGraphAddChildGraphNode", graph, None, c_size_t(0), c_void_p(self.child))
        elif "EventRecord" in name:
            node = made("hipGraphAddEventRecordNode", graph, None, c_size_t(0), c_void_p(self.event))
        elif "EventWait" in name:
            node = made("hipGraphAddEventWaitNode", graph, None, c_size_t(0), c_void_p(self.event))
        else:
            node = made("hipGraphAddEmptyNode", graph, None, c_size_t(0))
        self.node, self.next = node, made("hipGraphAddEmptyNode", graph, None, c_size_t(0))
        if name == "hipGraphRemoveDependencies":
            assert hip.hipGraphAddDependencies(graph, self.array(node), self.array(self.next), c_size_t(1)) == 0
        self.exec = made("hipGraphInstantiate", graph, None, None, c_size_t(0))
        if name == "hipGraphReleaseUserObject":
            assert hip.hipGraphRetainUserObject(graph, c_void_p(self.user_object), 1, 0) == 0
        if name == "hipGraphNodeFindInClone":
            self.child = made("hipGraphClone", graph)
        if re.fullmatch("hipStreamEndCapture|hipStreamUpdateCaptureDependencies", name):
            begun = hip.hipStreamBeginCaptureToGraph(c_void_p(self.stream), graph, None, None, c_size_t(0), 2)
            assert begun == 0
        if name == "hipHostUnregister":
            assert hip.hipHostRegister(c_void_p(world.usable.begin), c_size_t(PAGE), 0) == 0
        if name in ("__hipPopCallConfiguration",):
            self.push()

    def push(self) -> None:
        one = Dim3(1, 1, 1)
        assert self.world.hip["__hipPushCallConfiguration"](one, one, c_size_t(0), None) == 0

    def array(self, *pointers: int) -> Any:
        return self.world.array(*pointers)

    def handle(self, parameter: Parameter) -> int | None:
        if parameter.handle == "Graph" and parameter.name in ("child", "clone"):
            return self.child
        if parameter.name == "stop" or parameter.handle == "Ctx":
            return self.other_event if parameter.name == "stop" else None
        return {"Stream": self.stream, "Event": self.event, "Module": self.module, "Function": self.kernel,
                "Graph": self.graph, "GraphNode": self.node, "GraphExec": self.exec, "MemPool": self.pool,
                "UserObject": self.user_object}[parameter.handle or ""]  # fmt: skip

    def pointer_to(self, parameter: Parameter) -> Any:
        """A valid pointer for a parameter of the function."""
        name, call, world = parameter.name, self.function.name, self.world
        keep = world.keep
        if parameter.type == "Text":
            texts = {"path": world.dot if "Dot" in call else world.path, "symbol": "hipMalloc", "text": "0000:01:00.0"}
            text = "shared" if re.search("Global|Var", call) else str(texts.get(name, "probe"))
            return keep(ctypes.create_string_buffer(text.encode()))
        if parameter.type == "hipHostFn_t":
            return world.host_function
        if parameter.type == "callback":
            return world.callback
        if parameter.is_probed:
            return self.value_of(parameter)
        places = {"host_function": world.stub, "symbol": world.shadow, "image": world.image,
                  "wrapper": world.wrapper, "binary": self.binary, "host_pointer": self.pinned,
                  "initial_value": world.scratch, "value": keep(c_ulonglong(0)), "data": world.scratch,
                  "code": world.image, "source": self.memory, "destination": self.memory + 2048,
                  "host_variable": world.shadow}  # fmt: skip
        if call in ("hipHostRegister", "hipHostUnregister"):
            return world.usable.begin
        if "Host" in call and name == "pointer":
            return self.pinned
        return places.get(name, self.memory)

    def value_of(self, parameter: Parameter) -> Any:
        call, keep = self.function.name, self.world.keep
        inner = re.sub(r"^\w+<(.*)>$", r"\1", parameter.type)
        if inner == "hipGraphNode_t" and parameter.type.startswith("In<"):
            return self.array(self.next if parameter.name == "to" else self.node)
        if parameter.name == "extra":
            return None
        if parameter.name == "arguments":
            return self.arguments
        values = {
            "hipKernelNodeParams": self.kernel_node_params,
            "hipMemcpy3DParms": self.copy,
            "hip_Memcpy2D": keep(Copy2D(srcType=2, srcDevice=self.memory, srcPitch=64, dstType=2,
                                        dstDevice=self.memory + 1024, dstPitch=64, width=64, height=2)),
            "hipMemsetParams": self.fill,
            "hipHostNodeParams": self.host,
            "hipMemPoolProps": keep(PoolProperties(location=(1, 0))),
            "hipMemAccessDesc": keep((c_int * 3)(1, 0, 3)),
            "hipMemLocation": keep((c_int * 2)(1, 0)),
            "hipLaunchConfig_t": keep(Launch(Dim3(1, 1, 1), Dim3(64, 1, 1), 0, self.stream, None, 0)),
            "HIP_LAUNCH_CONFIG": keep(Launch(Dim3(1, 1, 1), Dim3(64, 1, 1), 0, self.stream, None, 0)),
        }  # fmt: skip
        if inner == "hipGraphNodeParams":
            node = keep(Node(type=0))
            ctypes.memmove(addressof(node) + 16, byref(self.kernel_node_params), ctypes.sizeof(Kernel))
            return node
        if inner == "hipPointer_attribute":
            return keep((c_int * 1)(2))
        if call == "hipDrvPointerGetAttributes":
            return self.array(addressof(self.world.scratch))
        if parameter.type == "InOut<size_t>":
            return keep(c_size_t(8))
        if parameter.type.startswith("In<") and inner in values:
            return values[inner]
        return keep(ctypes.create_string_buffer(8192))

    def by_value(self, parameter: Parameter) -> Any:
        """A valid argument for a parameter that isn't a pointer."""
        name, call = parameter.name, self.function.name
        if parameter.type == "dim3":
            return Dim3(1, 1, 1)
        if parameter.type == "hipExtent":
            return Extent(64, 2, 1)
        if parameter.type == "hipPitchedPtr":
            return Pitched(self.memory, 64, 64, 2)
        numbers = {"kind": 4, "size": 16, "bytes": 16, "capacity": 64, "width": 16, "height": 2, "pitch": 64,
                   "destination_pitch": 64, "source_pitch": 64, "count": 1, "references": 1, "block_threads": 64,
                   "version": 60300000, "grid_x": 1, "grid_y": 1, "grid_z": 1, "block_x": 64, "block_y": 1,
                   "block_z": 1, "threads_x": 64, "threads_y": 1, "threads_z": 1, "log_bytes": 64,
                   "selector": 0 if call == "hipFuncGetAttribute" else 8 if call == "hipFuncSetAttribute" else
                   63 if "Device" in call else 2, "attribute": 4}  # fmt: skip
        if call in ("hipUserObjectCreate",) and name == "flags":
            return c_size_t(1)
        if call == "__hipRegisterManagedVar" and name == "size":
            return c_size_t(16)
        return c_size_t(numbers.get(name, 0))

    def argument(self, parameter: Parameter) -> Any:
        if parameter.handle:
            return c_void_p(self.handle(parameter))
        if not parameter.is_pointer:
            return self.by_value(parameter)
        value = self.pointer_to(parameter)
        if isinstance(value, (ctypes.Structure, c_size_t)):
            return byref(value)
        return c_void_p(value) if isinstance(value, int) else value

    def end(self) -> None:
        hip = self.world.hip
        for call, handle in [("hipStreamDestroy", self.stream), ("hipGraphExecDestroy", self.exec),
                             ("hipGraphDestroy", self.graph), ("hipGraphDestroy", self.child),
                             ("hipEventDestroy", self.event), ("hipEventDestroy", self.other_event),
                             ("hipMemPoolDestroy", self.pool), ("hipModuleUnload", self.module),
                             ("hipFree", self.memory), ("hipFree", self.pinned),
                             ("hipHostUnregister", self.world.usable.begin)]:  # fmt: skip
            getattr(hip, call)(c_void_p(handle))
        hip["__hipUnregisterFatBinary"](c_void_p(self.binary))
        mode = c_int(0)
        hip.hipThreadExchangeStreamCaptureMode(byref(mode))
        hip.dgSimDebugWave(None, 0, 0, 0, 0, None, c_size_t(0))


# Calls that may succeed with an invalid pointer.
ALLOWED = {
    ("__hipPushCallConfiguration", "stream"),  # only the launch uses it
    ("hipGraphInstantiate", "log"),  # one byte is written, and fits before the end of a page
    ("hipDrvGraphAddMemsetNode", ""),  # the context, which is ignored: there is only one
    ("hipDrvGraphExecMemsetNodeSetParams", ""),
}
# Calls whose return value doesn't tell whether they failed.
MUTE = {"hipGetStreamDeviceId", "dgSimTakeProfiles", "dgSimTakeCounters", "dgSimTakeTrace"}


class Calls:
    def __init__(self, world: World, function: Function) -> None:
        self.world, self.function = world, function
        self.state = State(world, function)
        self.call = world.hip[function.name]
        # On failure, functions without a status return 0 or false.
        self.is_status = function.returns == "hipError_t" or function.name.startswith("__hip")

    def failed(self, arguments: list[Any]) -> bool:
        self.world.hip.hipGetLastError()
        result = self.call(*arguments)
        if self.function.returns == "hipError_t":
            return result != 0
        if self.is_status:
            return self.world.hip.hipPeekAtLastError() != 0
        return result == 0

    def follows(self, parameter: Parameter) -> bool:
        """Whether the call dereferences the pointer, so that it can't succeed with an invalid one."""
        if parameter.is_probed or parameter.handle or parameter.type in ("hipHostFn_t", "callback"):
            return True
        # Nodes of a graph only store the addresses to copy.
        in_graph = self.function.name.startswith("hipGraph")
        return parameter.name in ("source", "destination", "data", "value", "image", "initial_value") and not in_graph

    def try_all(self) -> list[dict[str, str]]:
        """The calls that gave a wrong answer."""
        wrong = []
        parameters = self.function.parameters
        good = [self.state.argument(parameter) for parameter in parameters]
        for i, parameter in enumerate(parameters):
            if not parameter.is_pointer and not parameter.handle:
                continue
            values = dict(self.world.wild)
            if parameter.is_written:
                values["read-only"] = self.world.read_only.begin + 64
            if parameter.type == "Text":
                ctypes.memset(self.world.usable.begin, ord("x"), PAGE)  # no zero before the page's end
            for kind, value in [*values.items(), ("null", None)]:
                fails = self.failed([*good[:i], c_void_p(value), *good[i + 1 :]])
                if (
                    kind == "null"
                    or not self.follows(parameter)
                    or fails
                    or (self.function.name, parameter.name) in ALLOWED
                ):
                    continue
                wrong.append({"function": self.function.name, "parameter": parameter.name, "pointer": kind})
        self.state.end()
        self.state = State(self.world, self.function)
        good = [self.state.argument(parameter) for parameter in parameters]
        if self.failed(good) and self.function.name not in MUTE:
            self.world.hip.dgSimLastMessage.restype = ctypes.c_char_p
            message = self.world.hip.dgSimLastMessage().decode()
            wrong.append({"function": self.function.name, "parameter": "", "pointer": f"all are right, but: {message}"})
        self.state.end()
        return wrong


def main() -> None:
    world = World(ctypes.CDLL(sys.argv[3] if len(sys.argv) > 3 else str(simulator.library_path())),
                  Path(sys.argv[1]).read_bytes())  # fmt: skip
    for number, function in enumerate(functions()):
        if number < int(sys.argv[2]) or not any(p.is_pointer or p.handle for p in function.parameters):
            continue
        print(f"{number} {function.name}", flush=True)
        for wrong in Calls(world, function).try_all():
            print(json.dumps(wrong), flush=True)
    print("done", flush=True)


if __name__ == "__main__":
    main()
