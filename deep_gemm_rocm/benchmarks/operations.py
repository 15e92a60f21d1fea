"""Everything that is measured, by name."""

from __future__ import annotations

from . import attention_problems, problems
from .attention_problems import AttentionOperation, AttentionProblem
from .problems import Operation, Problem

AnyProblem = Problem | AttentionProblem

OPERATIONS: dict[str, Operation | AttentionOperation] = {**problems.OPERATIONS, **attention_problems.OPERATIONS}
