"""All operations that can be measured, by name."""

from __future__ import annotations

from . import attention_problems, experts_problems, logits_problems, problems, row_problems, sparse_problems
from .attention_problems import AttentionOperation, AttentionProblem
from .experts_problems import ExpertsOperation, ExpertsProblem
from .logits_problems import LogitsOperation, LogitsProblem
from .problems import Operation, Problem
from .row_problems import RowsOperation, RowsProblem
from .shapes import AnyShape
from .sparse_problems import SelectionOperation, SelectionProblem, SparseOperation, SparseProblem

AnyProblem = (
    Problem | AttentionProblem | LogitsProblem | ExpertsProblem | RowsProblem | SparseProblem | SelectionProblem
)
AnyOperation = (
    Operation
    | AttentionOperation
    | LogitsOperation
    | ExpertsOperation
    | RowsOperation
    | SparseOperation
    | SelectionOperation
)

OPERATIONS: dict[str, AnyOperation] = {
    **problems.OPERATIONS,
    **attention_problems.OPERATIONS,
    **logits_problems.OPERATIONS,
    **experts_problems.OPERATIONS,
    **row_problems.OPERATIONS,
    **sparse_problems.OPERATIONS,
}


def make(op: str, shape: AnyShape, device: str) -> AnyProblem:
    """Makes a problem with inputs like a model's, the same in every call with the same shape.

    Raises:
        ValueError: only one of operation and shape has groups.
    """
    if op in problems.OPERATIONS:
        return problems.make(op, shape, device)  # type: ignore[arg-type]  # the op's own
    return OPERATIONS[op].make(op, shape, device)  # type: ignore[arg-type]
