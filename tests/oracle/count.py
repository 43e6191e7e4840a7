"""A day's numbers: bins of each stream, and the cells of its tables."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, date, datetime
from pathlib import Path

from tests.oracle import files
from tests.oracle.catalogue import Catalogue, read_catalogue
from tests.oracle.records import BY_REPLICA, Malformed, Record, bin_of, read_avro, read_line

STREAMS = ("aaa", "eos", "cmssw", "crab")
#: Rule 4: the bins that a stream alone has.
OWN_BINS = {"eos": ("deletion",), "crab": ("repeated",)}
UNMATCHED = ("no_lfn", "user_file", "temporary", "not_in_dbs")

#: (stream, dataset, site, app)
Cell = tuple[str, str, str, str]


@dataclass(frozen=True)
class Access:
    """One access that matched, as it goes into its cell."""

    dataset: str
    site: str
    app: str
    user: str | None
    remote: bool | None
    read_bytes: int | None
    cpu_ms: int | None
    wall_ms: int | None
    reader: str | None = None
    #: The job whose times these are, None where each access has its own.
    job: str | None = field(default=None, compare=False)


@dataclass
class StreamCount:
    """What became of a stream's records."""

    bins: Counter[str] = field(default_factory=Counter)
    #: Records out of the day by the day that they name.
    other_days: Counter[str] = field(default_factory=Counter)
    accesses: list[Access] = field(default_factory=list)
    #: Rule 73: unmatched records by their site.
    unmatched_sites: Counter[str] = field(default_factory=Counter)
    #: Rule 11: accesses whose bytes are not their own, and these bytes.
    set_aside: Counter[str] = field(default_factory=Counter)
    #: Rule 3: the files of each job; rule 11: the times of the records that count.
    job_files: set[tuple[str, str]] = field(default_factory=set)
    times: list[tuple[str | None, int | None, int | None]] = field(default_factory=list)
    stream: str = ""

    def jobs_once(self) -> dict[str, object]:
        """Rule 11: the jobs of the day and their seconds, whatever they read."""
        cpu = _once([(job, cpu) for job, cpu, _ in self.times])
        wall = _once([(job, wall) for job, _, wall in self.times])
        return {
            "job_count": len({job for job, *_ in self.times} - {None})
            + sum(job is None for job, *_ in self.times),
            "cpu_time": (_sum(cpu) or 0) / 1000,
            "wc_time": (_sum(wall) or 0) / 1000,
        }

    def reconciliation(self) -> dict[str, object]:
        """As ``cmsspark show --manifest`` prints it; what was read is the sum of all bins."""
        return {
            "read": sum(self.bins.values()),
            "matched": self.bins["matched"],
            "unmatched": {name: self.bins[name] for name in UNMATCHED},
            "malformed": self.bins["malformed"],
            "out_of_day": self.bins["out_of_day"],
            **{name: self.bins[name] for name in OWN_BINS.get(self.stream, ())},
            "write_only": self.bins["write_only"],
        }


def count_record(
    decode: Callable[[], Record], day: date, catalogue: Catalogue, into: StreamCount
) -> None:
    """Put one record into its bin and, where it matched, its access among the accesses."""
    try:
        record = decode()
    except Malformed:
        into.bins["malformed"] += 1
        return
    found = bin_of(record, day, catalogue.files.__contains__)
    if into.stream == "crab" and found in ("matched", *UNMATCHED[1:]):
        if record.job is not None and (record.job, record.lfn) in into.job_files:
            found = "repeated"
        else:
            into.job_files.add((record.job or "", record.lfn))
            into.times.append((record.job, record.cpu_ms, record.wall_ms))
    into.bins[found] += 1
    if found in UNMATCHED:
        into.unmatched_sites[record.site] += 1
    if found == "out_of_day":
        assert record.delivered is not None
        into.other_days[record.delivered] += 1
    if record.aside_bytes is not None and record.lfn and found != "out_of_day":
        into.set_aside.update(nacc=1, read_bytes=record.aside_bytes)
    if found == "matched":
        into.accesses.append(access_of(record, catalogue))


def access_of(record: Record, catalogue: Catalogue) -> Access:
    """The access of a matched record, with the facts that the dumps add."""
    remote = record.remote
    if remote == BY_REPLICA:
        remote = (
            None if record.site == "unknown" else not catalogue.on_disk(record.lfn, record.site)
        )
    assert remote is None or isinstance(remote, bool)
    return Access(
        catalogue.files[record.lfn][0],
        record.site,
        record.app,
        record.user,
        remote,
        record.read_bytes,
        record.cpu_ms,
        record.wall_ms,
        record.reader,
        record.job,
    )


def count_stream(root: Path, stream: str, day: date, catalogue: Catalogue) -> StreamCount:
    """All records of the stream's day."""
    counted = StreamCount(stream=stream)
    for decode in _decoders(root, stream, day):
        count_record(decode, day, catalogue, counted)
    return counted


def _decoders(root: Path, stream: str, day: date) -> Iterator[Callable[[], Record]]:
    form, folder = files.stream_folder(root, stream, day)
    for file in files.data_files(folder):
        if form == "avro":
            for record in files.avro_records(file):
                yield lambda record=record: read_avro(record, stream)
        else:
            for line in files.records(files.content(file)):
                yield lambda line=line: read_line(line, stream, enriched=form != "raw")


@dataclass
class DayCount:
    """A day counted: by stream, and as rows of its tables."""

    streams: dict[str, StreamCount]
    data_aggregation: list[dict[str, object]]
    #: ``user`` is the person's name, not a pseudonym.
    partials: list[dict[str, object]]
    site_pairs: list[dict[str, object]]


def count_day(root: Path, day: date, streams: tuple[str, ...] = STREAMS) -> DayCount:
    """Count the day under a root folder in the layout of production."""
    catalogue = read_catalogue(root, day)
    counted = {stream: count_stream(root, stream, day, catalogue) for stream in streams}
    return DayCount(
        counted, report_rows(counted, day), partial_rows(counted, day), pair_rows(counted, day)
    )


def partial_rows(counted: dict[str, StreamCount], day: date) -> list[dict[str, object]]:
    """One row for each (stream, dataset, site, app, user)."""
    groups: dict[tuple[Cell, str | None], list[Access]] = {}
    for cell, access in _cells(counted):
        groups.setdefault((cell, access.user), []).append(access)
    return [
        {**_key(cell, day), "user": user, **_sums(group)} for (cell, user), group in groups.items()
    ]


def report_rows(counted: dict[str, StreamCount], day: date) -> list[dict[str, object]]:
    """One row for each (stream, dataset, site, app)."""
    groups: dict[Cell, list[Access]] = {}
    for cell, access in _cells(counted):
        groups.setdefault(cell, []).append(access)
    return [
        {**_key(cell, day), **_sums(group), **_facts(cell, group, day)}
        for cell, group in groups.items()
    ]


def pair_rows(counted: dict[str, StreamCount], day: date) -> list[dict[str, object]]:
    """Rule 63: one row for each (data tier, reader's site, source site) of AAA, the
    stream that names both sites.
    """
    groups: dict[tuple[str | None, str | None, str | None], list[Access]] = {}
    for access in counted["aaa"].accesses if "aaa" in counted else ():
        tier = _dataset_parts(access.dataset)[2]
        source = None if access.site == "unknown" else access.site
        groups.setdefault((tier, access.reader, source), []).append(access)
    names = ("data_tier", "reader_site", "source_site")
    sums = ("nacc", "remote_nacc", "read_bytes")
    return [
        {
            "day": day,
            "stream": "aaa",
            **dict(zip(names, key, strict=True)),
            "timestamp": _start_ms(day),
        }
        | {name: _capped(_sums(group)[name]) for name in sums}
        for key, group in groups.items()
    ]


def _capped(value: object) -> object:
    return min(value, 2**63 - 1) if isinstance(value, int) else value


def _cells(counted: dict[str, StreamCount]) -> Iterator[tuple[Cell, Access]]:
    for stream, count in counted.items():
        for access in count.accesses:
            yield (stream, access.dataset, access.site, access.app), access


def _key(cell: Cell, day: date) -> dict[str, object]:
    return {
        "day": day,
        **dict(zip(("stream", "dataset_name", "site_name", "app"), cell, strict=True)),
    }


def _sums(group: list[Access]) -> dict[str, object]:
    cpu_ms = _sum(_once([(access.job, access.cpu_ms) for access in group]))
    wall_ms = _sum(_once([(access.job, access.wall_ms) for access in group]))
    return {
        "nacc": len(group),
        "remote_nacc": _sum([access.remote for access in group]),
        "read_bytes": _sum([access.read_bytes for access in group]),
        "cpu_time": None if cpu_ms is None else cpu_ms / 1000,
        "wc_time": None if wall_ms is None else wall_ms / 1000,
    }


def _once(times: list[tuple[str | None, int | None]]) -> list[int | None]:
    """Rule 11: of each job the largest time, and each time that is of none."""
    largest: dict[str, int | None] = {}
    of_none = [time for job, time in times if job is None]
    for job, time in times:
        if job is not None:
            before = largest.get(job)
            largest[job] = before if time is None or (before or -1) >= time else time
    return [*of_none, *largest.values()]


def _sum(values: list[int] | list[int | None] | list[bool | None]) -> int | None:
    there = [int(value) for value in values if value is not None]
    return sum(there) if there else None


def _facts(cell: Cell, group: list[Access], day: date) -> dict[str, object]:
    _, dataset, site, _ = cell
    return {
        "distinct_users": len({access.user for access in group} - {None}),
        "site_tier": site.split("_", 1)[0],
        **dict(
            zip(
                ("primary_name", "processing_name", "data_tier"),
                _dataset_parts(dataset),
                strict=True,
            )
        ),
        "timestamp": _start_ms(day),
    }


def _dataset_parts(dataset: str) -> list[str | None]:
    parts: list[str | None] = [*dataset.split("/")[1:4]]
    return parts + [None] * (3 - len(parts))


def _start_ms(day: date) -> int:
    return int(datetime(day.year, day.month, day.day, tzinfo=UTC).timestamp()) * 1000
