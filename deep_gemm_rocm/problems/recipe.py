"""Which values share a scale, and the checks of scales."""

from __future__ import annotations

from typing import Any, NamedTuple

from ..checks import is_int
from .gemm_kind import GROUP
from .layout import SCALE_BLOCK, ceil_div
from .matrices import TensorMeta, check_scales


class Recipe(NamedTuple):
    """How many rows of a, rows of b, and values along K share a scale; None for all of them."""

    m: int | None
    n: int | None
    k: int | None

    @property
    def scaling(self) -> str:
        """The value of ``GemmKind.scaling``."""
        return "rows" if self.k is None else "vectors" if self.n == 1 else "blocks"


BLOCKS = Recipe(1, SCALE_BLOCK, SCALE_BLOCK)
VECTORS = Recipe(1, 1, SCALE_BLOCK)
_RECIPES = (BLOCKS, VECTORS, *(Recipe(m, n, None) for m in (1, None) for n in (1, None)))


def check_recipe(function: str, recipe: Any, recipe_a: Any, recipe_b: Any) -> Recipe:
    """Combines DeepGEMM's three recipe arguments into one; by default, b has one scale for each 128 x 128 block.

    Raises:
        NotImplementedError: there is no kernel for the recipe.
        TypeError, ValueError: an argument is not a recipe, or the arguments contradict each other.
    """
    if recipe is recipe_a is recipe_b is None:
        return BLOCKS
    given = {"recipe": (recipe, 3), "recipe_a": (recipe_a, 2), "recipe_b": (recipe_b, 2)}
    for name, (value, length) in given.items():
        if value is not None:
            check_ints(name, value, length)
    if recipe is not None:
        whole = Recipe(*recipe)
    elif (recipe_a is None) != (recipe_b is None):
        raise ValueError("recipe_a and recipe_b must be given both, or neither")
    else:
        if recipe_a[1] != recipe_b[1]:
            raise ValueError(f"recipe_a and recipe_b must agree in K, their last number, got {recipe_a} and {recipe_b}")
        whole = Recipe(recipe_a[0], recipe_b[0], recipe_a[1])
    for name, value, expected in (
        ("recipe_a", recipe_a, (whole.m, whole.k)),
        ("recipe_b", recipe_b, (whole.n, whole.k)),
    ):
        if value is not None and tuple(value) != expected:
            raise ValueError(f"{name} must agree with recipe={tuple(whole)}, got {value}")
    if whole not in _RECIPES:
        known = ", ".join(str(tuple(recipe)) for recipe in _RECIPES)
        raise NotImplementedError(f"{function} has kernels for the recipes {known}; got {tuple(whole)}")
    return whole


def check_recipe_of_four_bits(function: str, recipe: Any, recipe_a: Any, recipe_b: Any) -> None:
    """Checks DeepGEMM's three recipe arguments for a four-bit b, with one scale for each row and 32 values.

    Raises:
        NotImplementedError: there is no kernel for the recipe.
        TypeError: an argument is not a recipe.
    """
    of_groups = (1, GROUP)
    expected = {"recipe_a": (recipe_a, ((1, SCALE_BLOCK), of_groups)), "recipe_b": (recipe_b, (of_groups,))}
    if recipe is not None:
        raise NotImplementedError(
            f"recipe of {function} must be None where b has four bits, got {recipe!r}; give recipe_a and recipe_b"
        )
    for name, (value, known) in expected.items():
        if value is None:
            continue
        check_ints(name, value, 2)
        if tuple(value) not in known:
            words = " or ".join(map(str, known))
            raise NotImplementedError(f"{name} of {function} must be {words} where b has four bits, got {value!r}")


def check_ints(name: str, recipe: Any, *lengths: int) -> None:
    """Checks that a recipe is a tuple of so many ints, or None instead of them.

    Raises:
        TypeError: it isn't.
    """
    fits = isinstance(recipe, (tuple, list)) and len(recipe) in lengths
    if not fits or not all(number is None or is_int(number) for number in recipe):
        raise TypeError(f"{name} must be a tuple of {' or '.join(map(str, lengths))} ints, got {recipe!r}")


def flat_recipe(recipe: Recipe) -> list[int]:
    """The recipe as custom operators take it: a list of ints, with 0 for None."""
    return [number or 0 for number in recipe]


def check_scales_of(
    operand: str, meta: TensorMeta, shape: tuple[int, ...], shared_rows: int | None, shared_k: int | None
) -> None:
    """Checks the scales of an operand of ``shape``; ``shared_rows`` rows and ``shared_k`` values share a scale."""
    *groups, rows, k = shape
    expected = (*groups, num_scales(rows, shared_rows), num_scales(k, shared_k))
    unit = "all rows" if shared_rows is None else "each row" if shared_rows == 1 else f"{shared_rows} rows"
    unit += " and all of K" if shared_k is None else f" and {shared_k} of K"
    check_scales(f"{operand}[1]", meta, expected, f"one scale for {unit} of {operand}[0]")


def num_scales(size: int, shared: int | None) -> int:
    """The number of scales of a dimension; ``shared`` values share one, None for all."""
    return 1 if shared is None else ceil_div(size, shared)
