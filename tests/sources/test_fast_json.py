"""Which shapes are learned and how long they are looked for; bins, counts and places
stay those of the decoder.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cmsspark.base.access import Group
from cmsspark.sources.formats import fast_json
from cmsspark.sources.formats.fast_json import LONGEST, Groups, LineTemplate, RequiredFieldsOf
from tests.bad import make
from tests.corpus import hostile, ordinary
from tests.corpus.json_lines import DAY_START
from tests.sources.both_ways import SHORT, Both, examples, needs_compiled
from tests.sources.test_decoders import DECODERS

pytestmark = needs_compiled
every_decoder = pytest.mark.parametrize("name", DECODERS)
#: The decoder's name → stream and form of its cases.
CASES = {
    "aaa enr": ("aaa", "enr"),
    "aaa raw": ("aaa", "raw"),
    "cmssw": ("cmssw", "json"),
    "eos": ("eos", "json"),
}
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
    assert found["generations"] == {
        "G1": order.count("eos G1"),
        "G2": twos,
        "G3": order.count("eos G3"),
    }
    assert both.taken >= 400


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
        assert (found["read"], found["write_only"], found["no_lfn"], len(found["accesses"])) == (
            6,
            1,
            2,
            0,
        )
        assert found["out_of_day"] == {0: 1, 1_000_000: 1, 2_932_897: 1}
    assert both.taken == 12


def test_malformed_lines_between_known_ones_keep_their_places() -> None:
    good, bad = GOOD["cmssw"] + b"\n", b"x\n"
    both = Both("cmssw", [GOOD["cmssw"]])
    chunk = (
        bad
        + good * 3
        + bad * 2
        + good
        + bad * 9
        + good * 2
        + b"\n"
        + good.replace(b"\n", b"\r\n")
        + bad
    )
    found = both.same(chunk, 1001)
    wanted = [1001, 1005, 1006, *range(1008, 1017), 1021]
    assert [(one.file, one.position) for one in found["malformed"]] == [
        ("some/part-0", line) for line in wanted
    ]


@pytest.mark.parametrize("inside", [None, b"", b'"x":1', b'"timestamp":null'])
def test_a_shape_without_a_timestamp_is_of_the_folders_day(inside: bytes | None) -> None:
    metadata = b"" if inside is None else b',"metadata":{' + inside + b"}"
    line = b'{"data":{"file_lfn":"/store/a","read_bytes":1}' + metadata + b"}"
    both = Both("aaa raw", [line])
    both.taken = 0
    assert len(both.same(line + b"\n")["accesses"]) == 1
    for other in (
        b',"metadata":null',
        b',"metadata":5',
        b',"metadata":{"timestamp":1}',
        b',"metadata":[]',
    ):
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


def _counting(both: Both, monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """The lines that the decoder will try to learn from."""
    tried: list[bytes] = []
    learn_template = fast_json.learn

    def learn(line: bytes, pick_required: RequiredFieldsOf) -> LineTemplate | None:
        tried.append(line)
        return learn_template(line, pick_required)

    monkeypatch.setattr(fast_json, "learn", learn)
    return tried


def test_lines_that_teach_nothing_are_tried_rarely_on_the_long_run(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    both = Both("aaa raw")
    tried = _counting(both, monkeypatch)
    # Of a shape that is known, but with an odd value: it costs most.
    odd = b'{"data":{"file_lfn":"/store/a","read_bytes":1e3}}\n'
    for _ in range(100):
        both.fast.decode(odd * 500, "f")
    assert len(tried) == fast_json._MOST_TRIES + 99 * 500 // fast_json._LINES_A_TRY


def test_a_shape_is_learned_after_any_number_of_odd_lines() -> None:
    both = Both("aaa raw", [_another(0)])
    for odd in (b"x\n", _another(0).replace(b"/store/a", b"\\/store/a") + b"\n"):
        both.fast.decode(odd * 2 * fast_json._LINES_A_TRY, "f")
        for _ in range(fast_json._MOST_TRIES):
            both.same(odd)
    for _ in range(2):
        both.same((_another(1) + b"\n") * fast_json._LINES_A_TRY)
    both.taken = 0
    both.same(_another(1) + b"\n" + _another(0) + b"\n")
    assert both.taken == 2


def test_empty_lines_are_not_learned_from(monkeypatch: pytest.MonkeyPatch) -> None:
    both = Both("aaa raw")
    tried = _counting(both, monkeypatch)
    both.same(b"\n" * 9)
    both.same(_another(0) + b"\n")
    assert tried == [_another(0)]


def test_the_fast_line_reader_stays_on_however_many_other_lines_there_are() -> None:
    both = Both("aaa raw", [_another(0)])
    for _ in range(300):
        both.fast.decode(b'{"data":5}\n' * 100, "f")
    both.taken = 0
    both.same(_another(0) + b"\n")
    assert both.taken == 1


def test_one_decoder_reads_files_of_changing_generations() -> None:
    both = Both("eos")
    g3, g1, flat = ((SHORT[form] + b"\n") * 3000 for form in ("eos G3", "eos G1", "eos flat"))
    both.file(g3, "part-0")
    # So long that a decoder might have stopped looking; a file in pieces, as a slow
    # stream gives them.
    for _ in range(300):
        both.fast.decode(g1[: len(g1) // 30], "part-1")
    both.file(g1, "part-2")
    both.taken = 0
    both.file(g3, "part-3")
    assert both.taken == 3000
    both.file(flat, "part-4")
    both.file(flat + g3, "part-5")
    assert both.taken > 9000


def test_shapes_that_begin_alike_are_reported_apart() -> None:
    """Of a line, what one shape has in common with the next is looked at once; what it
    took besides is forgotten.
    """
    needed = b'"file_lfn":"/store/a","read_bytes":%s,"user_dn":%s'
    ends = (
        b"",
        b',"app_info":"crab"',
        b',"x":1',
        b',"x":2,"app_info":"fuse"',
        b',"app_info":"b","x":3',
        b',"x":[4]',
    )
    values = [
        (b"5", b'"B"'),
        (b"null", b"null"),
        (b"7", b'""'),
        (b"0", b'"C"'),
        (b"-1", b'"D"'),
        (b"1e2", b'"E"'),
    ]
    # A shape that has taken a size, and an application, before the line turns out to be
    # of another.
    later = [b'{"data":{' + needed % one + end + b"}}" for end in ends for one in values]
    later += [
        b'{"data":{' + needed % one + end + b',"write_bytes":9}}' for end in ends for one in values
    ]
    both = Both("aaa raw", later[::6])
    both.learn_no_more()
    both.taken = 0
    for seed in range(20):
        random.Random(seed).shuffle(later)
        both.each(later, 1)
    assert both.taken == 20 * len(later) * 4 / 6


@pytest.mark.parametrize(
    ("first", "then", "line"),
    [
        (b'"sec.info":"A","path":"/a","rb":5', b'"sec.info":"A","eos_path":"/b","rb":"5"', None),
        (b'"sec_info":"A","eos_path":"/a"', b'"sec_info":"A","eos.path":"/b"', None),
        (b'"rb":"5","eos_path":"/a"', b'"rb":"5x","eos.path":"/b"', None),
        (b'"rb":5,"path":"/a"', b'"rb":"5","eos_path":"/a"', b'"rb":5,"eos_path":"/a"'),
        (b'"rb":"5","eos_path":"/a"', b'"rb":5,"path":"/a"', b'"rb":"5","path":"/a"'),
    ],
)
def test_what_one_form_takes_of_a_line_is_not_left_to_another(
    first: bytes, then: bytes, line: bytes | None
) -> None:
    forms = [b'{"data":{' + data + b"}}" for data in (first, then)]
    both = Both("eos", forms)
    both.taken = 0
    asked = b'{"data":{' + (line or then) + b"}}"
    both.same(forms[0] + b"\n" + asked + b"\n" + forms[1] + b"\n" + asked + b"\n")
    assert both.taken == (2 if line else 4)


def test_more_texts_than_are_remembered_are_still_reported_apart() -> None:
    line = b'{"data":{"file_lfn":"/store/a","read_bytes":1,"user_dn":"%d","app_info":"%d fuse"}}\n'
    both = Both("aaa raw", [(line % (0, 0)).strip()])
    both.taken = 0
    for begin in (0, 15_000, 30_000, 45_000, 0, 25_000):
        chunk = b"".join(line % (number, -number) for number in range(begin, begin + 15_000))
        assert len(both.same(chunk)["accesses"]) == 15_000
    assert both.taken == 90_000


@pytest.mark.parametrize("size", [0, 1, 2, 1023, 1024, 1025, 2000])
def test_texts_of_any_length_are_reported_apart(size: int) -> None:
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
    assert both.taken == len(lines)


_TEXTS = st.none() | st.text(max_size=3)
_GROUPS = st.lists(
    st.builds(Group, _TEXTS, _TEXTS, _TEXTS, st.integers(0, 3), _TEXTS), max_size=60
)


@settings(deadline=None, max_examples=100)
@given(_GROUPS, st.integers(0, 60))
def test_compiled_code_numbers_groups_as_python_does(groups: list[Group], first: int) -> None:
    compiled, plain = Groups(), Groups()
    plain.rows = fast_json._GroupRows()
    expected = list(dict.fromkeys(groups))
    for numbered in (compiled, plain):
        numbers = [
            numbered.number(each.user, each.app, (each.site, each.remote, each.reader))
            for each in groups
        ]
        assert numbers == [expected.index(each) for each in groups]
        assert [numbered[number] for number in numbers] == groups
        assert len(numbered) == len(expected)
    first = min(first, len(expected))
    for one, other in zip(compiled.rows.columns(first), plain.rows.columns(first), strict=True):
        assert one.tolist() == other.tolist()


def test_many_rows_of_numbers_have_the_numbers_that_they_have_one_by_one() -> None:
    rows = np.random.default_rng(1).integers(-1, 5, (3_000, 3))
    plain = fast_json._GroupRows()
    expected = [plain.add(*row) for row in rows.tolist()]
    for several in (fast_json.group_rows(), fast_json._GroupRows()):
        for part in np.split(rows, [1, 1, 2_000]):
            assert several.add_all(part.reshape(-1)).tolist() == expected[: len(part)]
            expected = expected[len(part) :] + expected[: len(part)]
        assert [column.tolist() for column in several.columns(0)] == [
            column.tolist() for column in plain.columns(0)
        ]


def test_more_users_than_a_memo_holds_are_told_apart() -> None:
    both = Both("aaa enr", [SHORT["aaa enr"]])
    users = [b"null", b'""', *(b'"/CN=%d x"' % number for number in range(66_000))]
    lines = [SHORT["aaa enr"].replace(b'"B"', user) + b"\n" for user in users]
    again = b"".join(lines[:1000])
    found = both.same(b"".join(lines) + again)
    assert found["read"] == both.taken == len(users) + 1000
    assert set(found["accesses"].values()) == {1, 2, 4}  # null and empty are nobody
    assert len({group.user for _, group, _ in found["accesses"]}) == 66_001
