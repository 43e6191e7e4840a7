"""The fast way and the way by the letter come to the same: for every line, in every stream."""

from __future__ import annotations

import re
import sys
from collections import Counter
from datetime import date
from typing import Any

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from cmsspark.base.access import AccessBatch, Quarantined
from cmsspark.sources.decoders import load_decoder
from cmsspark.sources.eos import EosDecoder
from cmsspark.sources.formats import strict_json
from cmsspark.sources.formats.json_lines import JsonDecoder
from cmsspark.sources.values import Apps, Malformed
from tests.sources import json_records

DAY = date(2019, 6, 15)
APPS = Apps.load()
DECODERS = {
    "aaa enr": ("aaa", lambda: load_decoder("aaa", "enr")(DAY, APPS, "enr")),
    "aaa raw": ("aaa", lambda: load_decoder("aaa", "raw")(DAY, APPS, "raw")),
    "cmssw": ("cmssw", lambda: load_decoder("cmssw", "json")(DAY, APPS)),
    "eos": ("eos", lambda: EosDecoder(DAY, APPS)),
}
#: A mark of EOS's first G2 form that no such record has without one of the needed
#: fields beside it: the fast way does not look at fields that it does not need.
UNSEEN = re.compile(rb'"eos\.(?!path"|rb"|wb"|sec\.info"|sec\.app")')
every_decoder = pytest.mark.parametrize("name", DECODERS)
fuzzed = settings(deadline=None, max_examples=300, suppress_health_check=[HealthCheck.too_slow])


def by_the_letter(decoder: JsonDecoder, chunk: bytes) -> AccessBatch:
    """The chunk's lines, each read by ``strict_json`` alone."""
    batch = AccessBatch()
    for number, line in enumerate(
        chunk.replace(b"\r\n", b"\n").removesuffix(b"\n").split(b"\n"), 1
    ):
        if not line.strip(b" \t"):
            continue
        batch.read += 1
        try:
            decoder.take([decoder.strict(strict_json.parse_object(line))], batch)
        except Malformed as error:
            batch.malformed.append(Quarantined("f", number, str(error), line))
    return batch


def result_of(decoder: JsonDecoder, batch: AccessBatch) -> dict[str, Any]:
    """A batch in a form that depends neither on the numbers of groups nor on the order
    of accesses.
    """
    groups = [decoder.groups[number] for number in batch.groups]
    return {
        "read": batch.read,
        "accesses": Counter(zip(batch.lfns, groups, batch.read_bytes or [], strict=True)),
        "deletion": batch.deletion,
        "write_only": batch.write_only,
        "set_aside": (batch.set_aside, batch.set_aside_bytes),
        "no_lfn": batch.no_lfn,
        "out_of_day": batch.out_of_day,
        "malformed": batch.malformed,
        "generations": batch.generations,
    }


def check(name: str, chunk: bytes) -> dict[str, Any]:
    fast, strict = DECODERS[name][1](), DECODERS[name][1]()
    found = result_of(fast, fast.decode(chunk, "f"))
    assert found == result_of(strict, by_the_letter(strict, chunk))
    return found


@every_decoder
@fuzzed
@given(data=st.data())
def test_the_fast_way_comes_to_the_same_as_the_letter(name: str, data: st.DataObject) -> None:
    lines = data.draw(st.lists(json_records.lines(DECODERS[name][0]), min_size=1, max_size=4))
    chunk = b"\n".join(lines) + b"\n"
    assume(not UNSEEN.search(chunk))
    check(name, chunk)


GOOD = {
    "aaa": b'{"data":{"file_lfn":"/store/a","read_bytes":1},"metadata":{"timestamp":1560600000000}}',
    "cmssw": b'{"data":{"file_lfn":"/store/a","read_bytes":1,"site_name":"T2_X"}}',
    "eos": b'{"data":{"path":"/store/a","rb":1,"wb":0}}',
}


@every_decoder
@settings(deadline=None, max_examples=25, suppress_health_check=[HealthCheck.too_slow])
@given(data=st.data())
def test_bad_lines_among_many_are_reported_with_their_place_and_cost_no_other(
    name: str, data: st.DataObject
) -> None:
    stream = DECODERS[name][0]
    lines = [GOOD[stream]] * data.draw(st.integers(1, 2000))
    for _ in range(data.draw(st.integers(0, 4))):
        lines[data.draw(st.integers(0, len(lines) - 1))] = data.draw(json_records.lines(stream))
    chunk = b"\n".join(lines) + b"\n"
    assume(not UNSEEN.search(chunk))
    check(name, chunk)


@every_decoder
@pytest.mark.parametrize("line", [b"{", b'{"data":1}', b"\xff", b'{"data":{"path":"/a","rb":-1}}'])
def test_a_batch_with_a_malformed_line_is_freed_without_a_search_for_garbage(
    name: str, line: bytes
) -> None:
    """A process that reads logs searches seldom: such batches would fill its memory."""
    batch = AccessBatch()
    references = sys.getrefcount(batch)
    DECODERS[name][1]().add(line + b"\n", "f", 1, batch)
    assert batch.read == 1 and sys.getrefcount(batch) == references
