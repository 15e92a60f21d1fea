from collections.abc import Callable
from typing import Any

from .described import Describe, Described

def use(
    dlpack_functions: object, tensor: type, parameter: type, is_grad_enabled: Callable[[], bool], in_python: Describe, /
) -> bool: ...
def describe(function: object, values: object, args: tuple[Any, ...], kwargs: dict[str, Any], /) -> Described: ...
