"""Compiled code takes a line only where it says of it what the decoder says without it."""

from __future__ import annotations

import ctypes
import mmap
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cmsspark.base.access import AccessBatch
from cmsspark.counting.catalogue import name_hash
from cmsspark.sources.formats import fast_json
from cmsspark.sources.formats.fast_json import LineTemplate, learn
from tests.sources import json_records
from tests.sources.both_ways import (
    SHORT,
    VALUE,
    Both,
    damaged,
    decoder_of,
    examples,
    needs_compiled,
    rekeyed,
    revalued,
)
from tests.sources.test_decoders import DECODERS

pytestmark = needs_compiled
every_form = pytest.mark.parametrize("form", SHORT)
every_decoder = pytest.mark.parametrize("name", DECODERS)


def _check(form: str, lines: list[bytes]) -> tuple[int, int]:
    """Both ways read the lines alike: those that have the shape of the form's, and
    those that give one themselves.

    How many were taken by compiled code, of either.
    """
    both = Both(decoder_of(form), [SHORT[form]])
    both.learn_no_more()
    both.each(lines)
    return both.taken, _check_learned(decoder_of(form), lines)


def _check_learned(name: str, lines: list[bytes]) -> int:
    """Lines are read alike after their own shape was learned, too."""
    pick_required = Both(name).known._pick_required
    shapes: dict[LineTemplate, bytes] = {}
    for line in lines:
        shape = learn(line, pick_required)
        if shape is not None:
            shapes.setdefault(shape, line)
    learned = list(shapes.values())
    taken = 0
    for begin in range(0, len(learned), 15):
        some = learned[begin : begin + 15]
        both = Both(name, some)
        both.each([*some, *reversed(some)], 4)
        taken += both.taken
    return taken


@every_form
def test_every_damage_to_every_byte_is_judged_alike(form: str) -> None:
    taken, learned = _check(form, list(damaged(SHORT[form])))
    assert taken > 150 and learned > 200


@every_form
def test_every_odd_value_in_every_place_is_judged_alike(form: str) -> None:
    taken, _ = _check(form, list(revalued(SHORT[form])))
    assert taken > 150


@every_form
def test_values_of_every_length_are_judged_alike(form: str) -> None:
    """Compiled code passes eight digits, and sixteen bytes of a text, at once."""
    lengths = range(1, 36)
    digits = [b"9876543210" * 4, b"1.0" + b"5" * 40, b"-" + b"8" * 40]
    values = [text[:length] for text in digits for length in lengths]
    values += [
        number[:-1] + end
        for number in values[7:20]
        for end in (b":", b"/", b"\xc2\xb2", b"\xff", b"\x00")
    ]
    values += [b'"' + b"t" * length + end for length in lengths for end in (b'"', b'\\""', b"")]
    line = SHORT[form]
    lines = [
        line[: value.start()] + new + line[value.end() :]
        for value in VALUE.finditer(line)
        for new in values
    ]
    lines += [line[: value.start()] + new for value in VALUE.finditer(line) for new in values]
    both = Both(decoder_of(form), [line])
    both.learn_no_more()
    both.each(lines)
    assert both.taken >= 20


@every_form
def test_keys_that_are_missing_moved_or_twice_are_judged_alike(form: str) -> None:
    _, learned = _check(form, list(rekeyed(SHORT[form])))
    assert learned > 20


@every_form
def test_every_cut_of_a_line_is_judged_alike(form: str) -> None:
    line = SHORT[form]
    both = Both(decoder_of(form), [line])
    both.learn_no_more()
    both.each(
        [line[:end] for end in range(len(line))] + [line[begin:] for begin in range(len(line))], 1
    )


@every_decoder
def test_an_examples_line_damaged_anywhere_is_judged_alike(name: str) -> None:
    for line in examples(name):
        both = Both(name, [line])
        both.learn_no_more()
        both.each(list(damaged(line))[::97])
        _check_learned(name, list(damaged(line))[::193])


@pytest.mark.long
@every_decoder
def test_an_examples_line_damaged_everywhere_is_judged_alike(name: str) -> None:
    for line in examples(name):
        both = Both(name, [line])
        both.learn_no_more()
        both.each(list(damaged(line)))
        both.each(list(revalued(line)))
        _check_learned(name, list(revalued(line)))


@pytest.mark.parametrize(
    "ending", [b"", b"\r", b" ", b"\t", b"\r\r", b"\x00", b"}", b"{}", b"\xef\xbb\xbf"]
)
@every_form
def test_what_stands_around_a_line_is_judged_alike(form: str, ending: bytes) -> None:
    line = SHORT[form]
    lines = [line + ending, ending + line, ending + line + ending, line, ending]
    both = Both(decoder_of(form), lines)
    both.each(lines * 3, 4)
    both.each(lines * 3, 100)


@every_decoder
@settings(deadline=None, max_examples=40, suppress_health_check=[HealthCheck.too_slow])
@given(data=st.data())
def test_generated_lines_are_judged_alike_the_first_time_and_the_second(
    name: str, data: st.DataObject
) -> None:
    lines = data.draw(st.lists(json_records.lines(DECODERS[name][0]), min_size=1, max_size=6))
    both = Both(name)
    for _ in range(3):
        both.each(lines, data.draw(st.integers(1, 6)))


@every_form
@settings(deadline=None, max_examples=40, suppress_health_check=[HealthCheck.too_slow])
@given(data=st.data())
def test_known_lines_among_others_are_judged_alike(form: str, data: st.DataObject) -> None:
    name = decoder_of(form)
    stream = DECODERS[name][0]
    values = st.sampled_from(list(_REVALUED[form]))
    line = st.one_of(
        values, values, st.sampled_from([SHORT[form], *examples(name)]), json_records.lines(stream)
    )
    lines = data.draw(st.lists(line, min_size=1, max_size=30))
    both = Both(name, [SHORT[form], *examples(name)])
    both.same(b"".join(one + b"\n" for one in lines), data.draw(st.integers(1, 2**40)))
    both.each(lines, data.draw(st.integers(1, 4)))


_REVALUED = {form: list(revalued(line)) for form, line in SHORT.items()}


def test_columns_hold_what_was_read_however_much_it_is() -> None:
    both = Both("aaa raw", [b'{"data":{"file_lfn":"/a","read_bytes":1}}'])
    columns = columns_of(both)
    assert (columns.count, len(columns.hashes), len(columns.groups), len(columns.read_bytes)) == (
        0,
        0,
        0,
        0,
    )
    names = [b"/store/%d" % number + b"x" * (number * 7 % 300) for number in range(5000)]
    chunk = b"".join(
        b'{"data":{"file_lfn":"%s","read_bytes":%d}}\n' % (name, len(name)) for name in names
    )
    assert both.known._lines.read(chunk, columns) == (5000, b"", [])
    assert [columns.name(row) for row in range(columns.count)] == names
    assert columns.hashes.tolist() == [name_hash(name) for name in names]
    assert columns.read_bytes.tolist() == [len(name) for name in names]
    assert set(columns.groups.tolist()) == {0}
    for row in (-1, 5000, 2**62):
        with pytest.raises(IndexError):
            columns.name(row)


def test_columns_that_follow_each_other_keep_to_their_own_rows() -> None:
    both = Both("aaa raw", [b'{"data":{"file_lfn":"/a","read_bytes":1}}'])
    living: list[Any] = []
    for turn in range(12):
        # Three at most are alive; the buffers of the oldest serve the next.
        living = [*living[-2:], (turn, columns_of(both))]
        names = [b"/store/%d/%d" % (turn, number) for number in range(10 + 700 * (turn % 4))]
        chunk = b"".join(
            b'{"data":{"file_lfn":"%s","read_bytes":%d}}\n' % (name, turn) for name in names
        )
        assert both.known._lines.read(chunk, living[-1][1]) == (len(names), b"", [])
        for of_turn, columns in living:
            assert columns.count == 10 + 700 * (of_turn % 4)
            assert set(columns.read_bytes.tolist()) == {of_turn}
            found = [columns.name(row) for row in range(columns.count)]
            assert found == [b"/store/%d/%d" % (of_turn, row) for row in range(columns.count)]
            assert columns.hashes.tolist() == [name_hash(name) for name in found]


def test_lines_that_are_left_are_handed_back_with_their_numbers() -> None:
    good, bad = SHORT["cmssw"] + b"\n", b"{}\n"
    both = Both("cmssw", [SHORT["cmssw"]])
    read = both.known._lines.read
    assert read(b"", columns_of(both)) == (0, b"", [])
    assert read(good, columns_of(both)) == (1, b"", [])
    assert read(bad, columns_of(both)) == (1, bad, [0])
    assert read(b"\n", columns_of(both)) == (1, b"\n", [0])
    assert read(bad * 2 + good * 3 + b"x\n" + good, columns_of(both)) == (
        7,
        bad * 2 + b"x\n",
        [0, 1, 5],
    )
    # What no newline ends is not read here.
    assert read(good + good[:-1], columns_of(both)) == (2, good[:-1], [1])
    assert read(b"x", columns_of(both)) == (1, b"x", [0])


def test_a_shape_of_other_needs_is_refused() -> None:
    both = Both("cmssw", [SHORT["cmssw"]])
    shape = learn(SHORT["cmssw"], both.known._pick_required)
    assert shape is not None
    for wrong in (
        shape._replace(required=shape.required._replace(shared=())),
        shape._replace(required=shape.required._replace(written=("a",))),
        shape._replace(literals=shape.literals[1:]),
        shape._replace(slots=(99, *shape.slots[1:])),
        shape._replace(slots=(-2, *shape.slots[1:])),
    ):
        with pytest.raises(ValueError):
            both.known._lines.add(wrong)
    for shared, sizes in ((16, 2), (2, 8)):
        with pytest.raises(ValueError):
            fast_json._template_reader.Lines([int] * shared, int, sizes, 0, 0)
    with pytest.raises(ValueError, match="too many"):
        for _ in range(17):
            both.known._lines.add(shape)
    both.each([SHORT["cmssw"]] * 3)


def test_what_the_meaning_of_a_text_raises_is_raised() -> None:
    both = Both("cmssw", [SHORT["cmssw"]])
    both.fast.user_names._make = lambda text: 1 // 0  # type: ignore[assignment]
    with pytest.raises(ZeroDivisionError):
        both.fast.decode(SHORT["cmssw"].replace(b'"user_dn":"B"', b'"user_dn":"C"') + b"\n", "f")


@every_form
def test_no_byte_is_read_before_or_behind_the_content(form: str) -> None:
    """The content lies at the end, then at the start, of memory around which nothing may be read."""
    line = SHORT[form]
    both = Both(decoder_of(form), [line])
    both.learn_no_more()
    reader = both.known._lines
    contents = [line[:end] for end in range(len(line) + 1)] + [
        line[:end] + b"\n" for end in range(len(line) + 1)
    ]
    contents += [line + b"\n" + line[:end] for end in range(len(line))]
    contents += [
        one[:at] + value for one in (line,) for at in range(len(one)) for value in _ENDINGS
    ]
    with guarded() as place:
        for content in contents:
            for at in (0, len(place) - len(content)):
                place[at : at + len(content)] = content
                columns = columns_of(both)
                lines, _, left = reader.read(place[at : at + len(content)], columns)
                assert lines == len(content.removesuffix(b"\n").split(b"\n")) or not content
                assert columns.count + sum(reader.bins()[:2]) + len(left) <= lines
                reader.knows(place[at : at + len(content)])


_ENDINGS = (
    b"n",
    b"nul",
    b"null",
    b"t",
    b"true",
    b"f",
    b"false",
    b"-",
    b"1.",
    b"1.0",
    b"1e",
    b"1e+",
    b'"',
    b'"file:',
    b'"root://',
)


@contextmanager
def guarded() -> Iterator[memoryview]:
    """A page of memory between two that nobody may touch."""
    size = mmap.PAGESIZE
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mprotect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    with mmap.mmap(-1, 3 * size) as pages:
        start = ctypes.addressof(ctypes.c_char.from_buffer(pages))
        for page in (start, start + 2 * size):
            assert libc.mprotect(page, size, 0) == 0
        try:
            with memoryview(pages) as whole, whole[size : 2 * size] as inside:
                yield inside
        finally:
            for page in (start, start + 2 * size):
                libc.mprotect(page, size, mmap.PROT_READ | mmap.PROT_WRITE)


def columns_of(both: Both) -> Any:
    """Empty columns, as the fast decoder makes them."""
    batch = AccessBatch()
    both.fast.add(b"\n", "f", 1, batch)
    return batch.packed
