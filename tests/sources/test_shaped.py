"""Compiled code takes a line only where it says of it what the decoder says without it."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cmsspark.sources.shapes import Shape, learn
from tests.sources import json_records
from tests.sources.both_ways import SHORT, Both, damaged, decoder_of, examples, rekeyed, revalued
from tests.sources.test_decoders import DECODERS

every_form = pytest.mark.parametrize("form", SHORT)
every_decoder = pytest.mark.parametrize("name", DECODERS)
#: Forms whose lines have a shape; EOS's first generation is one text.
SHAPED = [form for form in SHORT if form != "eos G1"]


def _check(form: str, lines: list[bytes]) -> Both:
    """Both ways read the lines alike: those that have the shape of the form's, and those that give one themselves."""
    both = Both(decoder_of(form), [SHORT[form]])
    both.learn_no_more()
    both.each(lines)
    _check_learned(decoder_of(form), lines)
    return both


def _check_learned(name: str, lines: list[bytes]) -> None:
    """Lines are read alike after their own shape was learned, too."""
    needs_of = Both(name).known._needs_of
    shapes: dict[Shape, bytes] = {}
    for line in lines:
        shape = learn(line, needs_of)
        if shape is not None:
            shapes.setdefault(shape, line)
    learned = list(shapes.values())
    for begin in range(0, len(learned), 15):
        some = learned[begin : begin + 15]
        both = Both(name, some)
        taken = both.taken
        both.each([*some, *reversed(some)], 4)
        assert both.taken > taken or not learned


@every_form
def test_every_damage_to_every_byte_is_judged_alike(form: str) -> None:
    both = _check(form, list(damaged(SHORT[form])))
    assert (both.taken > 200) == (form in SHAPED)


@every_form
def test_every_odd_value_in_every_place_is_judged_alike(form: str) -> None:
    both = _check(form, list(revalued(SHORT[form])))
    assert (both.taken > 200) == (form in SHAPED)


@every_form
def test_keys_that_are_missing_moved_or_twice_are_judged_alike(form: str) -> None:
    _check(form, list(rekeyed(SHORT[form])))


@every_form
def test_every_cut_of_a_line_is_judged_alike(form: str) -> None:
    line = SHORT[form]
    both = Both(decoder_of(form), [line])
    both.learn_no_more()
    both.each([line[:end] for end in range(len(line))] + [line[begin:] for begin in range(len(line))], 1)


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


@pytest.mark.parametrize("ending", [b"", b"\r", b" ", b"\t", b"\r\r", b"\x00", b"}", b"{}", b"\xef\xbb\xbf"])
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
def test_lines_made_up_are_judged_alike_the_first_time_and_the_second(name: str, data: st.DataObject) -> None:
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
    line = st.one_of(values, values, st.sampled_from([SHORT[form], *examples(name)]), json_records.lines(stream))
    lines = data.draw(st.lists(line, min_size=1, max_size=30))
    both = Both(name, [SHORT[form], *examples(name)])
    both.same(b"".join(one + b"\n" for one in lines), data.draw(st.integers(1, 2**40)))
    both.each(lines, data.draw(st.integers(1, 4)))


_REVALUED = {form: list(revalued(line)) for form, line in SHORT.items()}
