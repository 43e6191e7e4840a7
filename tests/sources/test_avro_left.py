"""What compiled code leaves of an Avro file, what it takes in its stead, and counts
that cannot be.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from cmsspark.base.access import AccessBatch
from cmsspark.base.errors import DataError
from cmsspark.sources.crab import CrabDecoder
from cmsspark.sources.decoders import load_decoder
from cmsspark.sources.formats import avro, avro_blocks, fast_json
from cmsspark.sources.values import milliseconds
from tests.sources.avro_rows import (
    APPS,
    CODECS,
    DAY,
    Counted,
    container,
    crab_schema,
    job,
    same,
    schema_of,
)
from tests.sources.both_ways import needs_compiled


class Counting(CrabDecoder):
    """Counts the records that are read one by one, and how often some of them are taken."""

    alone = taken = 0

    def avro_record(self, row: Mapping[str, Any]) -> Any:
        self.alone += 1
        return super().avro_record(row)

    def take_numbered(
        self, records: list[Any], positions: Sequence[int], batch: AccessBatch
    ) -> None:
        self.taken += 1
        super().take_numbered(records, positions, batch)


#: With compiled code, and without it.
both_ways = pytest.mark.parametrize(
    "is_compiled", [pytest.param(True, marks=needs_compiled), False]
)


@both_ways
def test_a_number_that_is_none_costs_its_own_record_only(
    is_compiled: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not is_compiled:
        monkeypatch.setattr(fast_json, "_plain_avro", None)
    decoder = Counting(DAY, APPS)
    rows = [job(number, WrapWC="nan" if number == 150 else "5") for number in range(300)]
    counted = Counted(container(crab_schema(), rows), decoder)
    assert (counted.read, len(counted.accesses), counted.malformed[0][0]) == (300, 299, 150)
    assert decoder.alone == int(is_compiled)


@needs_compiled
@pytest.mark.parametrize("codec", ["null", "snappy"])
def test_records_that_compiled_code_leaves_are_taken_at_once(codec: str) -> None:
    odd = {3: "nan", 7: "-0", 8: "1234567890123", 9: "x"}
    rows = [job(number, WrapCPU=odd.get(number % 25, "5")) for number in range(2000)]
    content = container(crab_schema(), rows, codec)
    decoder = Counting(DAY, APPS)
    found = Counted(content, decoder)
    assert (decoder.alone, decoder.taken) == (320, 1)
    assert found.__dict__ == same(content).__dict__
    assert [position for position, _ in found.malformed] == [
        n for n in range(2000) if n % 25 in (3, 9)
    ]


@needs_compiled
def test_a_file_of_which_much_would_be_left_is_read_in_the_other_ways() -> None:
    rows = [job(number, WrapCPU="-0" if number % 4 else "5") for number in range(8000)]
    content = container(crab_schema(), rows)
    decoder = Counting(DAY, APPS)
    assert len(Counted(content, decoder).accesses) == 8000
    assert decoder.alone == 0
    same(content)


@needs_compiled
@pytest.mark.parametrize("seconds", ["0.30000000000000004", "1.0000000001e3", ".5", "5.", "1e3"])
def test_seconds_of_any_precision_are_read_by_compiled_code(seconds: str) -> None:
    decoder = Counting(DAY, APPS)
    content = container(crab_schema(), [job(number, WrapCPU=seconds) for number in range(50)])
    assert [access[2] for access in Counted(content, decoder).accesses] == [
        milliseconds(seconds, "")
    ] * 50
    assert decoder.alone == 0


def long(number: int) -> bytes:
    """A number from 0 on as Avro writes it."""
    number, written = 2 * number, b""
    while number > 127:
        number, written = number >> 7, written + bytes([number & 127 | 128])
    return written + bytes([number])


@both_ways
@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("kind", ["null", ["null", "string"]], ids=["null", "string"])
@pytest.mark.parametrize("count", [4, 100, 5000, 10**9, 10**15, 2**60, 2**63 - 1])
def test_a_count_that_the_block_cannot_hold_is_damage(
    is_compiled: bool, codec: str, kind: Any, count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not is_compiled:
        monkeypatch.setattr(fast_json, "_plain_avro", None)
    row = {"FileName": None if kind == "null" else "/store/a"}
    content = container(schema_of({"FileName": kind}), [row] * 3, codec)
    at = content.index(content[-16:]) + 16
    assert content[at] == 6
    with pytest.raises(DataError, match="cannot be read"):
        Counted(content[:at] + long(count) + content[at + 1 :])


@needs_compiled
@pytest.mark.parametrize("codec", ["null", "deflate", "snappy"])
@pytest.mark.parametrize("count", [1, 2])
def test_a_count_that_is_too_low_is_damage(codec: str, count: int) -> None:
    content = container(crab_schema(), [job(number) for number in range(3)], codec)
    at = content.index(content[-16:]) + 16
    assert content[at] == 6
    with pytest.raises(DataError, match="more than the"):
        Counted(content[:at] + long(count) + content[at + 1 :])


@pytest.mark.parametrize("codec", CODECS)
def test_where_damage_is_accepted_a_count_that_cannot_be_ends_the_reading(codec: str) -> None:
    content = container(schema_of({"FileName": "null"}), [{"FileName": None}] * 3, codec)
    at = content.index(content[-16:]) + 16
    reasons: list[str] = []
    changed = content[:at] + long(2**60) + content[at + 1 :]
    batches = avro.decode(CrabDecoder(DAY, APPS), changed, "f", damaged=reasons.append)
    assert sum(batch.read for batch in batches) == 0
    assert f"{2**60} records" in reasons[-1]


@pytest.mark.parametrize("codec", CODECS)
def test_records_that_are_all_alike_are_no_damage(codec: str) -> None:
    found = same(container(crab_schema(("FileName",)), [{"FileName": None}] * 60_000, codec))
    assert (found.read, found.no_lfn) == (60_000, 60_000)


#: A process that has read such a file itself is forked: polars has threads by then, and
#: the child has none of them.
@needs_compiled
@pytest.mark.parametrize("kind", ["double", "float"])
def test_whole_numbers_as_floats_are_read_by_compiled_code(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(avro_blocks, "read_records", None)
    fields = {"FILE_LFN": "string", "READ_BYTES": kind, "READ_BYTES_AT_CLOSE": ["null", kind]}
    sizes = [0.0, -0.0, 1.0, 2.0**24, 2.0**62, 2.0**63 - 2.0**39]
    rows = [
        {"FILE_LFN": "/store/a", "READ_BYTES": size, "READ_BYTES_AT_CLOSE": None} for size in sizes
    ]
    found = Counted(
        container(schema_of(fields), rows), load_decoder("cmssw", "avro")(DAY, APPS, "avro")
    )
    assert sorted(read for _, _, read in found.accesses) == [0, 0, 1, 2**24, 2**62, 2**63 - 2**39]
