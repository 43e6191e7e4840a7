"""Which shapes are learned and how long they are looked for; bins, counts and places stay those of the decoder."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable
from typing import Any

import pytest

from cmsspark.sources import known
from cmsspark.sources.shapes import LONGEST
from tests.bad import make
from tests.corpus import hostile, ordinary
from tests.corpus.json_lines import DAY_START
from tests.sources.both_ways import SHORT, Both, examples, needs_compiled
from tests.sources.test_decoders import DECODERS

pytestmark = needs_compiled
every_decoder = pytest.mark.parametrize("name", DECODERS)
#: The decoder's name → stream and form of its cases.
CASES = {"aaa enr": ("aaa", "enr"), "aaa raw": ("aaa", "raw"), "cmssw": ("cmssw", "json"), "eos": ("eos", "json")}
ORDINARY: dict[str, Callable[[Any, int, int], Iterable[bytes]]] = {
    "aaa enr": ordinary.aaa_lines,
    "aaa raw": ordinary.aaa_lines,
    "cmssw": ordinary.cmssw_lines,
    "eos": ordinary.eos_lines,
}
GOOD = {name: SHORT.get(name, SHORT["eos G3"]) for name in DECODERS}


def _another(number: int) -> bytes:
    """A record of AAA of a shape that depends on the number."""
    return b'{"data":{"k%d":1,"file_lfn":"/store/a","read_bytes":1}}' % number


@every_decoder
def test_every_case_of_the_rules_is_judged_alike_when_its_shape_is_known(name: str) -> None:
    records = [
        case.record
        for case in hostile.cases()
        if (case.stream, case.form) == CASES[name] and isinstance(case.record, bytes)
    ]
    assert len(records) > 200
    for begin in range(0, len(records), 12):
        both = Both(name)
        for _ in range(2):
            both.each(records[begin : begin + 12], 1)
        both.each(records[begin : begin + 12])
    both = Both(name)
    for seed in range(4):
        random.Random(seed).shuffle(records)
        both.each(records, 40)
    assert both.taken > len(records)


@pytest.mark.parametrize("name", ["aaa enr", "cmssw", "eos"])
def test_whole_files_are_judged_alike_each_time(name: str) -> None:
    stream = CASES[name][0]
    files = [(case.content, "part-0") for case in hostile.file_cases() if case.stream == stream]
    files += [(bad.content, bad.file) for bad in make.small() if bad.stream == stream]
    for content, file in files:
        both = Both(name)
        for _ in range(2):
            both.file(content, file)
    both = Both(name)
    for content, file in files * 2:
        if len(content) < 100_000:
            both.file(content, file)
    assert both.taken > 100


@every_decoder
def test_an_ordinary_day_is_read_by_shapes_but_for_its_first_lines(name: str) -> None:
    lines = list(ORDINARY[name](ordinary.world(3), 3_000, DAY_START))
    plain = [line for line in lines if not line.startswith(b'{"data":"') and b"\\" not in line]
    both = Both(name)
    both.same(b"".join(line + b"\n" for line in lines[:400]))
    # Four lines of a chunk are learned from: some forms come later.
    for begin in range(0, 400, 20):
        both.same(b"".join(line + b"\n" for line in lines[begin : begin + 20]))
    both.taken = 0
    both.same(b"".join(line + b"\n" for line in plain))
    assert both.taken > 0.99 * len(plain) > 1000


@every_decoder
def test_an_ordinary_day_changed_at_random_is_judged_alike(name: str) -> None:
    lines = list(ORDINARY[name](ordinary.world(4), 300, DAY_START))
    both = Both(name, lines[:20])
    for seed in range(3):
        changed = [line.replace(b"\n", b"") for line in hostile.mutated(lines, seed)]
        both.each(changed, 50)


def test_generations_of_eos_are_counted_when_they_are_mixed() -> None:
    forms = ("eos G1", "eos G3", "eos flat", "eos prefixed")
    both = Both("eos", [SHORT[form] for form in forms])
    order = random.Random(1).choices(forms, k=400)
    found = both.same(b"".join(SHORT[form] + b"\n" for form in order))
    twos = order.count("eos flat") + order.count("eos prefixed")
    assert found["generations"] == {"G1": order.count("eos G1"), "G2": twos, "G3": order.count("eos G3")}
    assert both.taken >= 400 - order.count("eos G1")


def test_bins_and_days_of_known_lines_are_counted_once() -> None:
    head = b'{"data":{"file_lfn":"%s","read_bytes":%d,"write_bytes":%d},"metadata":{"timestamp":%s}}\n'
    both = Both("aaa raw", [(head % (b"/a", 1, 0, b"1560600000")).strip()])
    both.taken = 0
    chunk = (
        head % (b"/store/a", 0, 5, b"1560600000")
        + head % (b"file:", 1, 0, b"1560600000")
        + head % (b"", 0, 0, b"null")
        + head % (b"/store/a", 1, 0, b"0")
        + head % (b"", 0, 5, b"86400000000")
        + head % (b"/store/a", 2, 9, b"999999999999999999")
    )
    for _ in range(2):
        found = both.same(chunk)
        assert (found["read"], found["write_only"], found["no_lfn"], len(found["accesses"])) == (6, 1, 2, 0)
        assert found["out_of_day"] == {0: 1, 1_000_000: 1, 2_932_897: 1}
    assert both.taken == 12


def test_malformed_lines_between_known_ones_keep_their_places() -> None:
    good, bad = GOOD["cmssw"] + b"\n", b"x\n"
    both = Both("cmssw", [GOOD["cmssw"]])
    chunk = bad + good * 3 + bad * 2 + good + bad * 9 + good * 2 + b"\n" + good.replace(b"\n", b"\r\n") + bad
    found = both.same(chunk, 1001)
    wanted = [1001, 1005, 1006, *range(1008, 1017), 1021]
    assert [(one.file, one.position) for one in found["malformed"]] == [("some/part-0", line) for line in wanted]


@pytest.mark.parametrize("inside", [None, b"", b'"x":1', b'"timestamp":null'])
def test_a_shape_without_a_timestamp_is_of_the_folders_day(inside: bytes | None) -> None:
    metadata = b"" if inside is None else b',"metadata":{' + inside + b"}"
    line = b'{"data":{"file_lfn":"/store/a","read_bytes":1}' + metadata + b"}"
    both = Both("aaa raw", [line])
    both.taken = 0
    assert len(both.same(line + b"\n")["accesses"]) == 1
    for other in (b',"metadata":null', b',"metadata":5', b',"metadata":{"timestamp":1}', b',"metadata":[]'):
        both.same(line.replace(metadata or b"}}", other + (b"" if metadata else b"}}")) + b"\n")
    assert both.taken >= 1


def test_a_line_with_null_for_metadata_is_not_learned_and_read_all_the_same() -> None:
    line = b'{"data":{"file_lfn":"/store/a"},"metadata":null}'
    both = Both("aaa raw", [line, line])
    assert both.taken == 0


def test_no_more_than_sixteen_shapes_are_known() -> None:
    both = Both("aaa raw", [_another(number) for number in range(20)])
    assert both.known._lines.is_full
    both.taken = 0
    both.each([_another(number) for number in range(20)] * 3, 7)
    assert both.taken == 3 * 16


def test_a_shape_of_lines_with_odd_values_is_learned_once() -> None:
    odd = b'{"data":{"file_lfn":"/store/a","read_bytes":1e3}}'
    both = Both("aaa raw", [odd] * 40)
    assert (both.taken, len(both.known._lines.taken())) == (0, 1)
    both.each([_another(number) for number in range(15)] * 2, 1)
    assert both.taken == 15
    both.same(odd.replace(b"1e3", b"3") + b"\n")
    assert both.taken == 16


def test_so_many_lines_are_learned_from_and_no_more() -> None:
    both = Both("aaa raw")
    for _ in range(known._ALL_TRIES):
        both.same(b"x\n")
    both.same(_another(1) + b"\n")
    both.same(_another(1) + b"\n")
    assert both.taken == 0


def _gives_up(both: Both, chunk: bytes) -> bool:
    """Whether the decoder looks for no known lines any more, after a chunk."""
    both.fast.decode(chunk, "f")
    return bool(both.known._gave_up)


def test_looking_is_given_up_where_most_lines_are_of_no_known_shape() -> None:
    both = Both("aaa raw", [_another(0)])
    both.learn_no_more()
    unknown, half = _another(1) + b"\n", _another(1) + b"\n" + _another(0) + b"\n"
    both.known._seen = both.known._left = 0
    assert not _gives_up(both, half * known._PATIENCE)
    assert not _gives_up(both, unknown * known._PATIENCE)
    assert _gives_up(both, unknown)
    both.taken = 0
    assert both.same(half * 3)["read"] == 6
    assert both.taken == 0


def test_looking_goes_on_where_half_of_the_lines_are_known() -> None:
    both = Both("aaa raw", [_another(0)])
    both.learn_no_more()
    for _ in range(3):
        assert not _gives_up(both, (_another(1) + b"\n" + _another(0) + b"\n") * known._PATIENCE)


def test_more_texts_than_are_remembered_are_still_told_apart() -> None:
    line = b'{"data":{"file_lfn":"/store/a","read_bytes":1,"user_dn":"%d","app_info":"%d fuse"}}\n'
    both = Both("aaa raw", [(line % (0, 0)).strip()])
    both.taken = 0
    for begin in (0, 15_000, 30_000, 45_000, 0, 25_000):
        chunk = b"".join(line % (number, -number) for number in range(begin, begin + 15_000))
        assert len(both.same(chunk)["accesses"]) == 15_000
    assert both.taken == 90_000


@pytest.mark.parametrize("size", [0, 1, 2, 1023, 1024, 1025, 2000])
def test_texts_of_any_length_are_told_apart(size: int) -> None:
    line = b'{"data":{"file_lfn":"/store/a","read_bytes":1,"user_dn":"%s","src_experiment_site":"%s"}}\n'
    both = Both("aaa enr", [(line % (b"", b"")).strip()])
    texts = [b"", *(b"a" * (size - 1) + end for end in (b"a", b"b", b"c") if size)]
    chunk = b"".join(line % (one, other) for one in texts for other in texts)
    for _ in range(3):
        assert len(both.same(chunk)["accesses"]) == len(texts) ** 2


def test_a_known_line_may_be_longer_than_what_is_learned_from() -> None:
    line = b'{"data":{"file_lfn":"/store/%s","read_bytes":1,"x":"%s"}}'
    both = Both("aaa raw", [line % (b"a", b"")])
    both.taken = 0
    both.same(line % (b"b" * 100_000, b"x" * 9 * LONGEST) + b"\n")
    assert both.taken == 1
    fresh = Both("aaa raw", [line % (b"b" * 100_000, b"x")] * 2)
    assert fresh.taken == 0


@every_decoder
def test_examples_are_read_by_shapes_the_second_time(name: str) -> None:
    lines = examples(name)
    both = Both(name, lines)
    both.taken = 0
    both.each(lines, 1)
    assert both.taken == sum(not line.startswith(b'{"data":"') for line in lines)
