"""The C function that recalls calls tells them apart as the Python code does, and leaves to it what is unusual."""

from __future__ import annotations

import ctypes
import sys
import sysconfig
from array import array
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from deep_gemm_rocm.launch import fast_path
from deep_gemm_rocm.launch.fast_path import described_by_python
from deep_gemm_rocm.launch.launch import number_places
from deep_gemm_rocm.launch.merge_states import MergeStatesArguments

needs_c = pytest.mark.skipif(fast_path.in_c is None, reason="torch or Python is too old, or was built without it")

DTYPES = (
    torch.float8_e4m3fnuz, torch.float8_e5m2fnuz, torch.float8_e4m3fn, torch.float8_e5m2, torch.bfloat16, torch.float16,
    torch.float32, torch.float64, torch.int32, torch.int8, torch.uint8, torch.bool,
)  # fmt: skip


def function():
    """Stands for a public function."""


def by_c(called, values, args, kwargs):
    """The description of a call that isn't known."""
    described, again = fast_path.recall(called, values, {}, args, kwargs)
    assert again is None
    return described


def describe(how, *args, **kwargs):
    return how(function, "settings", args, kwargs)


def test_the_c_function_is_there_where_it_can_be():
    headers = Path(sysconfig.get_path("include"), "Python.h")
    free_threaded = sysconfig.get_config_var("Py_GIL_DISABLED")
    if hasattr(torch.Tensor, "__dlpack_c_exchange_api__") and headers.exists() and not free_threaded:
        assert fast_path.in_c is not None


class OwnParameter(torch.nn.Parameter):
    """As servers have them."""


@st.composite
def tensors(draw):
    shape = draw(st.lists(st.sampled_from((0, 1, 2, 3)), max_size=3))
    strides = draw(st.sampled_from((None, [draw(st.sampled_from((0, 1, 2, 3, 6))) for _ in shape])))
    dtype = draw(st.sampled_from((torch.float32, torch.bfloat16, torch.float8_e4m3fnuz, torch.int32)))
    memory = torch.zeros(64).view(dtype)
    tensor = memory.as_strided(shape, strides, 2) if strides else memory[2:][: torch.Size(shape).numel()].view(shape)
    parameter = draw(st.sampled_from((None, None, torch.nn.Parameter, OwnParameter)))
    return tensor if parameter is None else parameter(tensor, requires_grad=False)


others = st.sampled_from((None, True, False, 0, 1, 2, 1.0, 0.0, -0.0, "nk", "mn", (1, 128), torch.float32, b"", b"\0"))
parts = st.one_of(tensors(), others)
arguments = st.lists(st.one_of(parts, st.lists(parts, max_size=2), st.tuples(parts, parts)), max_size=3)
keywords = st.dictionaries(st.sampled_from(("c", "bias")), parts, max_size=2)
calls = st.tuples(arguments, keywords)


@needs_c
@settings(max_examples=150, deadline=None)
@given(calls, calls)
def test_both_describe_calls_alike(one, other):
    """Equal keys of the one mean equal keys of the other, whatever the arguments are."""
    keys = []
    for how in (by_c, described_by_python):
        found = [describe(how, *args, **kwargs) for args, kwargs in (one, other)]
        keys.append([hash(key) and key for key, _, _ in found])
        (args, kwargs), (_, of_c, addresses) = one, found[0]
        _, of_python, expected = describe(described_by_python, *args, **kwargs)
        assert addresses == expected
        assert list(map(id, of_c)) == list(map(id, of_python))
        assert describe(how, *args, **kwargs)[0] == keys[-1][0]
    (c_one, c_other), (python_one, python_other) = keys
    assert (c_one == c_other) == (python_one == python_other)
    assert c_one != python_one


x = torch.zeros(4, 6)
DIFFERENT = {
    "shapes": ((x,), (x[:3],)),
    "contiguous": ((x,), (torch.zeros(6, 4).T,)),
    "strides": ((torch.zeros(4, 7)[:, :6],), (torch.zeros(4, 8)[:, :6],)),
    "dtypes": ((x,), (x.int(),)),
    "functions of rows": ((x[:, 0],), (x[0, :4],)),
    "places": ((x, None), (None, x)),
    "depths": (((x, x),), (x, x)),
    "kinds": ((1,), (True,)),
    "signs of zero": ((0.0, 1.0), (-0.0, 1.0)),
    "lengths": (((1, 2), 3), ((1,), 2, 3)),
}


@needs_c
@pytest.mark.parametrize("case", DIFFERENT)
def test_both_tell_the_same_calls_apart(case):
    one, other = DIFFERENT[case]
    for how in (by_c, described_by_python):
        assert describe(how, *one)[0] != describe(how, *other)[0]


@needs_c
def test_all_dtypes_differ():
    assert len({describe(by_c, torch.zeros(2).to(dtype))[0] for dtype in DTYPES}) == len(DTYPES)


@needs_c
def test_functions_settings_and_names_differ():
    assert by_c(min, 1, (x,), {})[0] != by_c(max, 1, (x,), {})[0]
    assert by_c(min, 1, (x,), {})[0] != by_c(min, 2, (x,), {})[0]
    assert by_c(min, 1, (), {"c": x})[0] != by_c(min, 1, (), {"bias": x})[0]


def freed(tensor):
    tensor.untyped_storage().resize_(0)
    return tensor


UNUSUAL = {
    "meta": lambda: x.to("meta"),
    "sparse": lambda: x.to_sparse(),
    "quantised": lambda: torch.quantize_per_tensor(x, 1.0, 0, torch.quint8),
    "negated": lambda: torch.zeros(3, dtype=torch.complex64).conj().imag,
    "negated columns": lambda: torch.zeros(4, 4, dtype=torch.complex64).conj().imag.as_strided((4, 2), (2, 1)),
    "gradients": lambda: x.clone().requires_grad_(),
    "parameter with gradients": lambda: torch.nn.Parameter(x),
    "nested": lambda: torch.nested.nested_tensor([torch.zeros(2), torch.zeros(3)]),
    "nine dimensions": lambda: torch.zeros((1,) * 9),
    "many parts": lambda: tuple(range(100)),
    "many tensors": lambda: (x,) * 20,
    "freed": lambda: freed(torch.zeros(2)),
    "subclass": lambda: x.as_subclass(type("Own", (torch.Tensor,), {})),
}


@needs_c
@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("case", UNUSUAL)
def test_what_is_unusual_is_left_to_python(case):
    part = UNUSUAL[case]()
    expected, found = describe(described_by_python, x, part), describe(by_c, x, part)
    if expected is None:
        assert found is None
    else:
        assert found[0] == expected[0] or case == "quantised"
        assert found[0][0] is function


@pytest.mark.parametrize("case", ["subclass", "freed"])
def test_some_tensors_are_left_to_the_function(case):
    assert describe(described_by_python, UNUSUAL[case]()) is None


@needs_c
def test_tensors_inside_a_transform_have_no_address():
    found = []
    torch.func.vmap(lambda row: found.append(describe(by_c, row)) or row)(x)
    assert found == [None]


@needs_c
def test_gradients_that_nobody_wants():
    with torch.no_grad():
        key, (tensor,), (address,) = describe(by_c, weight := torch.nn.Parameter(x))
    assert tensor is weight
    assert address == x.data_ptr()
    assert key == describe(by_c, x)[0]


@needs_c
def test_no_reference_is_lost_or_kept():
    part, text = torch.zeros(3), "".join(("n", "k", "2"))
    args = ([part, (part, text)], part, text, torch.zeros((1,) * 9))
    for given_args in (args, args[:3]):
        describe(by_c, *given_args, c=part)
        before = [sys.getrefcount(thing) for thing in (part, text, given_args, function)]
        for _ in range(1000):
            describe(by_c, *given_args, c=part)
        assert [sys.getrefcount(thing) for thing in (part, text, given_args, function)] == before


@needs_c
@pytest.mark.parametrize("args", [(), (1,), (1, 2, {}, [], {}), (1, 2, {}, (), []), (1, 2, [], (), {})])
def test_wrong_use_is_an_error(args):
    with pytest.raises(TypeError):
        fast_path.recall(*args)


RULES = {
    "nothing": ((), (), ()),
    "aligned": ((1,), (), ()),
    "apart": ((), ((0, 1, 96, 8),), ()),
    "together": ((), (), ((0, 1, 4),)),
}


class Call:
    """A remembered call of two tensors with one launch, whose arguments are the addresses of all tensors.

    Attributes:
        fill: made by ``fast_path.filler_of``.
    """

    def __init__(self, key, forms=(), rules="nothing", scratch=None):
        numbers = [*range(2 + len(forms)), *([] if scratch is None else [-1])]
        step = print, bytes(8 * len(numbers)), tuple([(i, one, i) for i, one in enumerate(numbers)])
        self.fill = fast_path.filler_of(key)([step], 2, *RULES[rules], tuple(forms), (), scratch)


def recalled(how, one, other, *more):
    """Recalls a call of two tensors that is known, and returns its tensors and the addresses in its launch."""
    key = describe(by_c if how is fast_path.recall else described_by_python, one, other)[0]
    call = Call(key, *more)
    described, again = how(function, "settings", {key: call}, (one, other), {})
    if again is None:
        assert described[0] == key
        assert list(map(id, described[1])) == list(map(id, (one, other)))
        return None
    assert described is None
    found, made, ((entry_point, words),) = again
    assert found is call
    assert entry_point is print
    return made, [word - i for i, word in enumerate(array("Q", words))]


both_ways = pytest.mark.parametrize(
    "how", [pytest.param(fast_path.recall, marks=needs_c), fast_path.recalled_by_python]
)


@both_ways
def test_new_tensors_are_like_those_asked_for(how):
    like = (
        torch.empty(3, 5).T, torch.empty(2, 8, dtype=torch.float8_e4m3fnuz), torch.empty((), dtype=torch.int32),
        torch.empty(7, dtype=torch.uint8),
    )  # fmt: skip
    made, addresses = recalled(how, x, x, list(map(fast_path.form_of, like)), "nothing", lambda _: 5)
    assert addresses == [*[tensor.data_ptr() for tensor in made], 5]
    assert all(one is x for one in made[:2])
    for one, expected in zip(made[2:], like, strict=True):
        assert (one.shape, one.stride(), one.dtype) == (expected.shape, expected.stride(), expected.dtype)


@both_ways
@pytest.mark.parametrize(
    ("rules", "distance", "is_allowed"),
    [
        ("nothing", 1, True), ("aligned", 1, False), ("aligned", 4, True), ("apart", 23, False), ("apart", 24, True),
        ("apart", -1, False), ("apart", -2, True), ("together", 1, True), ("together", 2, False),
    ],
)  # fmt: skip
def test_addresses_follow_rules(how, rules, distance, is_allowed):
    memory = torch.zeros(64)
    one, other = memory[16:][:24], memory[16 + distance :][:2]
    found = recalled(how, one, other, (), rules)
    assert (found is not None) == is_allowed
    if found is not None:
        assert found[1] == [one.data_ptr(), other.data_ptr()]


@both_ways
def test_tensors_without_elements_are_left_to_the_function(how):
    assert recalled(how, x, x[:0]) is None
    assert recalled(how, x, x, [fast_path.form_of(x[:0].clone())]) is None


@needs_c
def test_a_call_that_is_not_ready_is_described():
    described, _ = fast_path.recall(function, 1, {}, (x,), {})
    call = Call(described[0])
    call.fill = None
    assert fast_path.recall(function, 1, {described[0]: call}, (x,), {})[1] is None


@both_ways
def test_errors_of_scratch_memory_are_raised(how):
    def full(_):
        raise torch.OutOfMemoryError

    with pytest.raises(torch.OutOfMemoryError):
        recalled(how, x, x, (), "nothing", full)


@needs_c
def test_no_reference_is_lost_or_kept_by_a_repetition():
    key = describe(by_c, x, x)[0]
    known = {key: Call(key, [fast_path.form_of(x)], "nothing", lambda _: 5)}
    before = []
    for _ in range(3):
        before.append([sys.getrefcount(thing) for thing in (x, function, print, known[key], key, None)])
        for _ in range(1000):
            fast_path.recall(function, "settings", known, (x, x), {})
    assert before[1][:-1] == before[2][:-1]
    assert abs(before[1][-1] - before[2][-1]) < 100


@needs_c
@pytest.mark.parametrize(
    "args",
    [
        (), ([], 99, (), (), (), (), (), None), ([], 1, (1,), (), (), (), (), None), ([], 1, (), (), (), [], (), None),
        ([], 1, (), (), (), (), ("1",), None), ([], 1, (), ((0, 0, 1),), (), (), (), None),
    ],
)  # fmt: skip
def test_wrong_fillers_are_errors(args):
    with pytest.raises((TypeError, ValueError)):
        fast_path.in_c.filler(*args)


@needs_c
@pytest.mark.parametrize("place", [(1, 0, 0), (-1, 0, 0), (0, 2, 0), (0, -1, 0), (0, -2, 0)])
def test_wrong_places_are_errors(place):
    with pytest.raises(ValueError, match=r"place|number"):
        fast_path.in_c.filler([(print, bytes(8), (place,))], 2, (), (), (), (), (), None)


class Numbers(ctypes.Structure):
    _fields_ = (("i", ctypes.c_int), ("u", ctypes.c_uint), ("q", ctypes.c_int64), ("inner", MergeStatesArguments))


BY_BOTH = [pytest.param("_with_numbers_by_python", id="Python"), pytest.param("with_numbers", marks=needs_c, id="C")]


@pytest.mark.parametrize("function", BY_BOTH)
def test_numbers_are_exchanged(function):
    before = Numbers(i=1, u=2, q=3)
    numbers = {"i": -(2**31), "u": 2**32 - 1, "q": -(2**63), "inner.first_lse.head_stride": 2**63 - 1}
    arguments = bytes(before)
    filled = Numbers.from_buffer_copy(getattr(fast_path, function)(arguments, numbers, number_places(Numbers)))
    assert (filled.i, filled.u, filled.q) == (-(2**31), 2**32 - 1, -(2**63))
    assert filled.inner.first_lse.head_stride == 2**63 - 1
    filled.inner.first_lse.head_stride = filled.i = filled.u = filled.q = 0
    assert not any(bytes(filled))
    assert arguments == bytes(before)


@pytest.mark.parametrize("function", BY_BOTH)
@pytest.mark.parametrize("numbers", [{"i": 2**31}, {"i": -(2**31) - 1}, {"u": -1}, {"u": 2**32}, {"q": 2**63}])
def test_numbers_have_to_fit(function, numbers):
    with pytest.raises(OverflowError):
        getattr(fast_path, function)(bytes(Numbers()), numbers, number_places(Numbers))


@needs_c
@pytest.mark.parametrize(
    "args",
    [
        (),
        (b"", {"i": 1}),
        ("text", {}, {}),
        (b"", [("i", 1)], {}),
        (b"", {"i": 1}, {"i": (0, 4)}),
        (bytes(8), {"i": 1}, {"i": (5, -4)}),
        (bytes(8), {"i": "1"}, {"i": (0, 4)}),
        (bytes(8), {"i": 1}, {}),
        (bytes(8), {"i": 1}, {"i": 3}),
    ],
)
def test_wrong_numbers_are_errors(args):
    with pytest.raises((TypeError, KeyError, OverflowError, SystemError)):
        fast_path.in_c.with_numbers(*args)


@pytest.mark.parametrize("how", [pytest.param("C", marks=needs_c), "Python"])
def test_parts_of_a_new_tensor(how):
    steps = [(print, bytes(range(24)), ((0, 3, 5), (2, 0, 1))), (len, bytes(8), ((0, 2, -1),)), (len, bytes(8), ())]
    filler = fast_path.in_c.filler if how == "C" else fast_path.filler_by_python
    filled = filler(steps, 1, (), (), (), (fast_path.form_of(x),), (0, 2**40), None)
    launches = fast_path.fill(filled, tensors := [x], (100,))
    begin = tensors[1].data_ptr()
    assert [entry_point for entry_point, _ in launches] == [print, len, len]
    words = [list(array("Q", arguments)) for _, arguments in launches]
    assert words == [[begin + 2**40 + 5, words[0][1], 101], [begin - 1], [0]]
    assert launches[0][1][8:16] == bytes(range(8, 16))


@needs_c
def test_wrong_tensors_to_fill_in_are_errors():
    filled = fast_path.in_c.filler([], 1, (), (), (), (), (), None)
    for args in ((), (filled, [], ()), (filled, [x], ()), (filled, (x,), (1,)), (filled, [x], ("1",)), (1, [x], (1,))):
        with pytest.raises((TypeError, ValueError)):
            fast_path.in_c.fill(*args)


# One argument, a tensor of [6, 7, 2] whose strides are 100, 2 and 1, and another one, contiguous, of [3, 12].
WORDS = array("q", [3, 0, 0, 7, 7, 3 << 1, 6, 7, 2, 100, 2, 1, 7, 7, 2 << 1 | 1, 3, 12]).tobytes()


@needs_c
@pytest.mark.parametrize(
    ("places", "most", "changes", "sizes", "is_elsewhere"),
    [
        ([(0, 0, 0, 0, False)], [6], {6: 0}, (6,), False),
        ([(0, 0, 0, 3, False)], [3], {6: 0}, (3,), True),
        ([(0, 0, 0, 0, False), (1, 1, 0, 6, False)], [6], {6: 0, 16: 0}, (6,), False),
        ([(0, 0, 0, 0, False), (1, -1, 0, 0, True)], [6], {6: 0, 16: 2}, (6,), False),
        ([(0, 0, 0, 5, False), (1, 0, 1, 0, False)], [6, 3], {15: 0}, (1, 3), False),
        ([(0, 0, 0, 0, False)], [5], None, None, None),  # too large
        ([(0, 0, 0, 6, False)], [6], None, None, None),
        ([(0, 0, 0, 5, False)], [6], None, None, None),  # all are 1
        ([(0, 0, 0, 0, False), (1, 1, 0, 5, False)], [7], None, None, None),
        ([(0, 0, 0, 0, False), (1, 0, 0, 0, True)], [6], None, None, None),
        ([(1, 0, 0, 0, True)], [6], None, None, None),
        ([(0, 1, 0, 0, False)], [7], None, None, None),  # rows between others
        ([(1, 2, 0, 0, False)], [20], None, None, None),  # no such dimension
        ([(1, -3, 0, 0, False)], [20], None, None, None),
    ],
)
def test_sizes_are_taken_out(places, most, changes, sizes, is_elsewhere):
    found = fast_path.in_c.without_sizes(WORDS, places, most)
    if changes is None:
        assert found is None
        return
    words, *others = found
    expected = array("q", WORDS)
    for at, number in changes.items():
        expected[at] = number
    assert array("q", words) == expected
    assert others == [sizes, (0,) * len(places), is_elsewhere]


@needs_c
def test_distances_between_columns_are_taken_out():
    words = array("q", [1, 7, 7, 2 << 1, 6, 3, 1, 8])
    found = fast_path.in_c.without_sizes(words.tobytes(), [(0, 0, 0, 0, False)], [9])
    words[4], words[-1] = 0, -1
    assert found == (words.tobytes(), (6,), (8,), False)


@needs_c
@pytest.mark.parametrize(
    "args",
    [
        (), ("text", (), ()), (b"", (), ()), (bytes(16), (), ()), (bytes(40), (), ()), (WORDS[:-1], (), ()),
        (WORDS, ((2, 0, 0, 0, 0),), (9,)),
        (WORDS, ((0, 0, 1, 0, 0),), (9,)), (WORDS, ((0, 0, -1, 0, 0),), (9,)), (WORDS, ((0, 0, 0),), (9,)),
        (WORDS, (), ("9",)), (WORDS, 1, (9,)),
    ],
)  # fmt: skip
def test_wrong_words_are_errors(args):
    with pytest.raises((TypeError, ValueError)):
        fast_path.in_c.without_sizes(*args)


@needs_c
def test_new_tensors_are_where_the_arguments_are():
    """Torch's quick function makes tensors on the current GPU, so it won't do for another one."""
    form = fast_path.form_of(x)
    assert form.quick is not None
    on_another = form._replace(device=1, options=form.options | {"dtype": torch.int16})
    made, _ = recalled(fast_path.recall, x, x, [form, on_another])
    assert [tensor.dtype for tensor in made[2:]] == [torch.float32, torch.int16]


@needs_c
def test_new_tensors_need_no_memory_of_another_gpu():
    """The current one may be another one, and full."""

    def full(*_):
        raise torch.OutOfMemoryError

    made, _ = recalled(fast_path.recall, x, x, [fast_path.form_of(x)._replace(quick=full)])
    assert made[2].shape == x.shape
