"""What becomes of a case: by the oracle, and by the decoders of the package."""

from __future__ import annotations

import gzip
import io
from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from datetime import date, timedelta
from functools import cache

from cmsspark.base.access import NO_BYTES, AccessBatch, Group, Remote
from cmsspark.sources.reader import Reader
from tests.corpus import tables
from tests.corpus.avro_files import container
from tests.corpus.cases import Case, Expected, FileCase, OutOfDay
from tests.corpus.hostile import DAY
from tests.oracle import catalogue, files
from tests.oracle.count import StreamCount, access_of, count_record
from tests.oracle.records import BY_REPLICA, Record, bin_of, read_avro, read_line


@cache
def case_catalogue() -> catalogue.Catalogue:
    """What the dumps of the cases say, by the oracle."""

    def rows(content: bytes, columns: dict[str, int]) -> Iterable[dict[str, str | None]]:
        for row in catalogue.csv_rows(content.decode()):
            yield {name: row[at] for name, at in columns.items()}

    return catalogue.build(
        iter(
            rows(
                tables.plain_csv(tables.FILES),
                {"file_id": 0, "logical_file_name": 1, "dataset_id": 3, "block_id": 4},
            )
        ),
        iter(rows(tables.quoted_csv(tables.BLOCKS), {"block_id": 0, "block_name": 1})),
        iter(rows(tables.escaped_csv(tables.DATASETS), {"dataset_id": 0, "dataset": 1})),
        iter(
            rows(
                tables.plain_csv(tables.REPLICAS),
                {"block_name": 6, "node_name": 13, "br_node_files": 20},
            )
        ),
    )


def by_oracle(case: Case) -> Expected:
    """What the oracle makes of the record."""
    counted = StreamCount()

    def decode() -> Record:
        if isinstance(case.record, bytes):
            return read_line(case.record, case.stream, enriched=case.form != "raw")
        stored = io.BytesIO(container(case.fields, [case.record]))
        (record,) = files.avro_records_of(stored)
        return read_avro(record, case.stream)

    count_record(decode, DAY, case_catalogue(), counted)
    return _one(counted)


def file_by_oracle(case: FileCase) -> dict[str, int]:
    """The bins of a whole text file by the oracle."""
    stored = (
        gzip.decompress(case.content) if case.content.startswith(b"\x1f\x8b") else case.content
    )
    return _bins(counted_by_oracle(case.stream, stored))


def counted_by_oracle(stream: str, content: bytes) -> StreamCount:
    """A text file's records by the oracle."""
    counted = StreamCount()
    for line in files.records(content):
        count_record(lambda line=line: read_line(line, stream), DAY, case_catalogue(), counted)
    return counted


def same(one: StreamCount, other: StreamCount) -> bool:
    """Whether two counts agree in every bin, day and access; in which order does not matter."""
    return (
        +one.bins == +other.bins
        and +one.other_days == +other.other_days
        and Counter(one.accesses) == Counter(other.accesses)
        and one.set_aside == other.set_aside
    )


def by_decoder(case: Case) -> Expected:
    """What the package's decoder makes of the record, which stands alone in a file."""
    if isinstance(case.record, bytes):
        return _one(decoded(case.stream, case.form, case.record + b"\n"))
    return _one(decoded(case.stream, case.form, container(case.fields, [case.record])))


def file_by_decoder(case: FileCase) -> dict[str, int]:
    """The bins of a whole text file by the package's decoder."""
    return _bins(
        decoded(case.stream, {"aaa": "enr", "eos": "eos"}.get(case.stream, "json"), case.content)
    )


def decoded(stream: str, form: str, content: bytes, day: date = DAY) -> StreamCount:
    """A file's records as the package decodes them, with the oracle's catalogue behind."""
    reader = Reader(stream, "eos" if stream == "eos" else form, day)
    counted = StreamCount()
    for batch in reader.file(io.BytesIO(content), "case"):
        _check_columns(batch.unpack())
        counted.bins["malformed"] += len(batch.malformed)
        counted.bins["write_only"] += batch.write_only
        counted.bins["deletion"] += batch.deletion
        if batch.set_aside:
            counted.set_aside.update(nacc=batch.set_aside, read_bytes=batch.set_aside_bytes)
        counted.bins["no_lfn"] += batch.no_lfn
        for number, count in batch.out_of_day.items():
            counted.bins["out_of_day"] += count
            counted.other_days[_day(number)] += count
        for record in _records(batch, reader.groups):
            found = bin_of(record, day, case_catalogue().files.__contains__)
            counted.bins[found] += 1
            if found == "matched":
                counted.accesses.append(access_of(record, case_catalogue()))
    return counted


def _day(number: int) -> str:
    try:
        return (date(1970, 1, 1) + timedelta(days=number)).isoformat()
    except OverflowError:
        return "beyond 9999-12-31"


def _check_columns(batch: AccessBatch) -> None:
    """A batch is whole: columns of equal length, and every record somewhere."""
    accesses = len(batch.lfns)
    for column in (batch.groups, batch.read_bytes, batch.cpu_ms, batch.wall_ms):
        assert column is None or len(column) == accesses
    binned = (
        len(batch.malformed)
        + batch.deletion
        + batch.write_only
        + batch.no_lfn
        + sum(batch.out_of_day.values())
    )
    assert batch.read == accesses + binned


def _records(batch: AccessBatch, groups: list[Group]) -> Iterable[Record]:
    remote = {
        Remote.NO: False,
        Remote.YES: True,
        Remote.UNKNOWN: None,
        Remote.BY_REPLICA: BY_REPLICA,
    }
    for at, (lfn, number) in enumerate(zip(batch.lfns, batch.groups, strict=True)):
        group = groups[number]
        yield Record(
            lfn,
            group.site,
            group.user,
            group.app,
            None
            if batch.read_bytes is None or batch.read_bytes[at] == NO_BYTES
            else batch.read_bytes[at],
            cpu_ms=None if batch.cpu_ms is None else batch.cpu_ms[at],
            wall_ms=None if batch.wall_ms is None else batch.wall_ms[at],
            remote=remote[group.remote],
            reader=group.reader,
        )


def _one(counted: StreamCount) -> Expected:
    """The one outcome of a count of one record."""
    bins = [name for name, count in counted.bins.items() for _ in range(count)]
    assert len(bins) == 1, f"one record became {bins or 'none'}"
    if bins == ["matched"]:
        return replace(counted.accesses[0])
    if bins == ["out_of_day"]:
        return OutOfDay(*counted.other_days)
    return bins[0]


def _bins(counted: StreamCount) -> dict[str, int]:
    return {
        name: counted.bins[name] for name in {"matched", "malformed", *(+Counter(counted.bins))}
    }
