"""AMD's library for managing GPUs, on a machine without one: names an MI300X, which is all that vLLM asks for."""

from __future__ import annotations

from typing import Any


class AmdSmiException(Exception):  # noqa: N818  AMD's name
    pass


class AmdSmiMemoryType:
    VRAM = 0


def amdsmi_init(*_: Any) -> None:
    pass


def amdsmi_shut_down() -> None:
    pass


def amdsmi_get_processor_handles() -> list[int]:
    return [0]


def amdsmi_get_gpu_asic_info(handle: int) -> dict[str, str]:
    return {"target_graphics_version": "gfx942", "device_id": "0x74a1"}


def amdsmi_get_gpu_memory_total(handle: int, kind: int) -> int:
    return 192 * 2**30


def amdsmi_get_gpu_device_uuid(handle: int) -> str:
    return "0"


def amdsmi_topo_get_link_type(*_: Any) -> dict[str, int]:
    return {}


def amdsmi_topo_get_numa_node_number(handle: int) -> int:
    return 0
