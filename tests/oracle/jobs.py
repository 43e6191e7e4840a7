"""Rules 29 to 33: HTCondor's jobs, which record of a job counts, and what its input is."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from datetime import date, timedelta
from pathlib import Path

from tests.oracle import fields, files, rucio
from tests.oracle.catalogue import RUCIO_SINCE, csv_rows, site_and_kind
from tests.oracle.count import Access
from tests.oracle.fields import UNKNOWN, IllTyped
from tests.oracle.records import Malformed, _object, _timestamp, day_named, needed
from tests.oracle.strict_json import NotJson, Number, Value, parse_object

BINS = ("malformed", "out_of_day", "not_final", "other_type", "never_ran", "repeated")
UNMATCHED = ("no_input", "user_file", "not_in_dbs")


@dataclass(frozen=True)
class JobRecord:
    """A well-formed record; texts as logged, times in hours."""

    job_id: str
    status: str | None
    type: str | None
    site: str | None
    block: str | None
    dataset: str | None
    user: str | None
    workflow: str | None
    tool: str | None
    agent: str | None
    record_time: int | None
    read_bytes: int | None
    cpu: float | None
    wall: float | None
    exit_code: int | None
    delivered: int | None

    @property
    def time_ms(self) -> int:
        stamp = self.delivered if self.record_time is None else self.record_time
        if stamp is None:
            return 0
        if stamp < 10**11:
            return stamp * 1000
        return stamp if stamp < 10**14 else stamp // 1000

    @property
    def site_name(self) -> str:
        return fields.site_of(self.site)

    @property
    def user_name(self) -> str | None:
        return fields.person_of(self.user)

    @property
    def app(self) -> str:
        app = fields.app_of(self.tool or self.agent)
        return "crab" if app in ("other", UNKNOWN) and self.workflow else app


def milliseconds(hours: float | None) -> int | None:
    return None if hours is None else math.floor(hours * 3_600_000 + 0.5)


def _hours(value: Value) -> float | None:
    if value is None:
        return None
    if not isinstance(value, Number):
        raise IllTyped("hours are a number")
    number = float(value.raw)
    if not math.isfinite(number) or number < 0 or number * 3_600_000 + 0.5 >= 2**63 - 1:
        raise IllTyped("hours are finite and not negative")
    return number


def _whole(value: Value) -> int | None:
    if value is None:
        return None
    if not isinstance(value, Number):
        raise IllTyped("an exit code is a number")
    return fields.whole(value.raw.decode())


def read_job(line: bytes) -> JobRecord:
    """The record of one line. Raises Malformed."""

    def decode(value: Value) -> tuple[object, ...]:
        data = _object(value)
        texts = [
            needed(data, key, fields.text)
            for key in (
                "GlobalJobId",
                "Status",
                "Type",
                "Site",
                "CRAB_DataBlock",
                "DESIRED_CMSDataset",
                "CRAB_UserHN",
                "CRAB_Workflow",
                "CMS_SubmissionTool",
                "CMS_WMTool",
            )
        ]
        return (
            *texts,
            needed(data, "RecordTime", fields.timestamp),
            needed(data, "ChirpCMSSWReadBytes", fields.byte_count),
            needed(data, "CpuTimeHr", _hours),
            needed(data, "WallClockHr", _hours),
            needed(data, "ExitCode", _whole),
        )

    try:
        top = parse_object(line)
        decoded = needed(top, "data", decode)
        delivered = needed(top, "metadata", _timestamp)
    except (NotJson, IllTyped) as error:
        raise Malformed(str(error)) from None
    if decoded is None or not decoded[0]:
        raise Malformed("data or the job's id is missing")
    return JobRecord(*decoded, delivered)  # type: ignore[arg-type]


def early_bin(record: JobRecord, day: date) -> str | None:
    """The bins of rule 30 that one record decides; None for a record that may count."""
    if record.delivered is not None and day_named(record.delivered) != day.isoformat():
        return "out_of_day"
    if record.status not in ("Completed", "Removed"):
        return "not_final"
    if (record.type or "").lower() not in ("analysis", "production"):
        return "other_type"
    return None if record.wall else "never_ran"


def order(record: JobRecord) -> list[tuple[bool, object]]:
    """Rule 31: of a job's records the largest counts."""
    values: list[object] = [
        record.status == "Completed",
        record.time_ms,
        milliseconds(record.wall),
        milliseconds(record.cpu),
        record.read_bytes,
        record.exit_code,
        record.block,
        record.dataset,
        record.site_name,
        record.user_name,
        record.app,
        record.workflow,
    ]
    return [
        (value is not None, value.encode() if isinstance(value, str) else value or 0)
        for value in values
    ]


@dataclass
class JobCatalogue:
    """Blocks with their dataset, the names of datasets, and disk replicas (block, site)."""

    blocks: dict[str, str] = field(default_factory=dict)
    datasets: set[str] = field(default_factory=set)
    disk: set[tuple[str, str]] = field(default_factory=set)


def read_job_catalogue(root: Path, day: date) -> JobCatalogue:
    """From the dumps under the root that belong to a log day."""
    dump = files.dbs_folder(root, day, ("FILES", "BLOCKS", "DATASETS"))
    found = JobCatalogue()
    names = {
        row[0]: row[1]
        for row in _rows(dump / "DATASETS")
        if row[0] is not None and row[1] is not None
    }
    found.datasets = set(names.values())
    newest: dict[str, int] = {}
    for row in _rows(dump / "BLOCKS"):
        number, block, dataset = int(row[0] or -1), row[1], names.get(row[2] or "")
        if block is not None and dataset is not None and number > newest.get(block, -2):
            newest[block], found.blocks[block] = number, dataset
    if day >= RUCIO_SINCE:
        found.disk = rucio.read(rucio.table_folder(root, day)).on_disk()
        return found
    for row in _rows(files.phedex_folder(root, day)):
        site, kind = site_and_kind(row[13] or "")
        if kind == "disk" and int(row[20] or 0) > 0 and row[6] is not None:
            found.disk.add((row[6], site))
    return found


def _rows(folder: Path) -> Iterable[list[str | None]]:
    for file in files.data_files(folder):
        yield from csv_rows(files.content(file).decode())


def input_of(record: JobRecord, catalogue: JobCatalogue) -> tuple[str, str | None, str | None]:
    """Rule 32: (``dataset`` or the bin, dataset, block)."""
    block = record.block
    if block == "MCFakeBlock":
        return "no_input", None, None
    if block == "UserFilesFakeBlock":
        return "user_file", None, None
    if block and "#" in block:
        name, part = block.split("#", 1)
        if part and _is_dataset(name):
            if block in catalogue.blocks:
                return "dataset", catalogue.blocks[block], block
            return _by_name(name, catalogue)
    name = record.dataset or ""
    head = name.split("/")[0]
    if ":" in head:
        if head.split(":")[0] != "cms":
            return "user_file", None, None
        name = name[len("cms:") :]
    name = name.split("#")[0]
    return _by_name(name, catalogue) if _is_dataset(name) else ("no_input", None, None)


def _is_dataset(name: str) -> bool:
    return name.startswith("/") and name.count("/") == 3 and all(name[1:].split("/"))


def _by_name(name: str, catalogue: JobCatalogue) -> tuple[str, str | None, str | None]:
    if name in catalogue.datasets:
        return "dataset", name, None
    return ("user_file" if name.split("/")[3] == "USER" else "not_in_dbs"), None, None


@dataclass(frozen=True)
class Job:
    """A job that counts."""

    record: JobRecord
    input: str
    dataset: str | None
    block: str | None
    remote: bool | None

    def access(self) -> Access:
        """As it goes into its cell."""
        record = self.record
        assert self.dataset is not None
        times = milliseconds(record.cpu), milliseconds(record.wall)
        app, user = record.app, record.user_name
        return Access(
            self.dataset, record.site_name, app, user, self.remote, record.read_bytes, *times
        )


@dataclass
class JobCount:
    """What became of a day's records."""

    bins: Counter[str] = field(default_factory=Counter)
    other_days: Counter[str] = field(default_factory=Counter)
    jobs: list[Job] = field(default_factory=list)
    #: Ids of all jobs with a record that may count.
    ids: set[str] = field(default_factory=set)

    def unmatched_sites(self) -> Counter[str]:
        """Rule 73: the sites of jobs without a dataset in DBS."""
        return Counter(job.record.site_name for job in self.jobs if job.input != "dataset")

    def reconciliation(self) -> dict[str, object]:
        return {
            "read": sum(self.bins.values()),
            "matched": self.bins["matched"],
            "unmatched": {name: self.bins[name] for name in UNMATCHED},
            **{name: self.bins[name] for name in BINS},
        }


def condor_folder(root: Path, day: date) -> Path | None:
    """Rule 29: the final folder, else the unfinished one; None where there is neither."""
    final = root / files.MONITORING / f"condor/raw/metric/{day:%Y/%m/%d}"
    return next(
        (place for place in (final, final.with_name(final.name + ".tmp")) if place.is_dir()), None
    )


def condor_lines(folder: Path) -> Iterable[bytes]:
    for file in files.data_files(folder):
        yield from files.records(files.content(file))


def count_jobs(
    lines: Iterable[bytes], day: date, earlier: Iterable[bytes], catalogue: JobCatalogue
) -> JobCount:
    """Rules 30 to 33 over a day's lines; ``earlier``: those of the day before."""
    before = _final(earlier, day - timedelta(days=1), JobCount())
    count = JobCount()
    for job_id, records in _final(lines, day, count).items():
        count.ids.add(job_id)
        if job_id in before:
            count.bins["repeated"] += len(records)
            continue
        count.bins["repeated"] += len(records) - 1
        record = max(records, key=order)
        what, dataset, block = input_of(record, catalogue)
        count.bins["matched" if what == "dataset" else what] += 1
        is_known = block is not None and record.site_name != UNKNOWN
        remote = (block, record.site_name) not in catalogue.disk if is_known else None
        count.jobs.append(Job(record, what, dataset, block, remote))
    return count


def _final(lines: Iterable[bytes], day: date, into: JobCount) -> dict[str, list[JobRecord]]:
    """By job the records that no bin takes; the others go into their bins."""
    found: dict[str, list[JobRecord]] = {}
    for line in lines:
        try:
            record = read_job(line)
        except Malformed:
            into.bins["malformed"] += 1
            continue
        early = early_bin(record, day)
        if early is None:
            found.setdefault(record.job_id, []).append(record)
            continue
        into.bins[early] += 1
        if early == "out_of_day":
            assert record.delivered is not None
            into.other_days[day_named(record.delivered)] += 1
    return found


def count_day_of_jobs(root: Path, day: date) -> JobCount:
    """The day under a root folder in the layout of production."""
    folder, before = condor_folder(root, day), condor_folder(root, day - timedelta(days=1))
    assert folder is not None
    earlier = condor_lines(before) if before is not None else ()
    return count_jobs(condor_lines(folder), day, earlier, read_job_catalogue(root, day))


def popularity_rows(days: Iterable[JobCount]) -> list[dict[str, object]]:
    """Rule 37: ``crab_popularity`` of days as they were counted."""
    groups: dict[tuple[str, str | None], list[Job]] = {}
    for count in days:
        for job in count.jobs:
            if job.record.app == "crab":
                groups.setdefault((job.input, job.dataset), []).append(job)
    return [_popularity(*key, jobs) for key, jobs in groups.items()]


def _popularity(what: str, dataset: str | None, jobs: list[Job]) -> dict[str, object]:
    def distinct(value: Callable[[Job], object]) -> int:
        return len({value(job) for job in jobs} - {None, ""})

    def total(values: Iterable[int | None]) -> int | None:
        there = [value for value in values if value is not None]
        return sum(there) if there else None

    cpu, wall = (
        total(milliseconds(job.record.cpu) for job in jobs),
        total(milliseconds(job.record.wall) for job in jobs),
    )
    times = [job.record.time_ms for job in jobs]
    return {
        "input": what,
        "dataset_name": dataset,
        "data_tier": None if dataset is None else dataset.split("/")[3],
        "job_count": len(jobs),
        "failed_job_count": sum(
            job.record.status == "Completed" and job.record.exit_code not in (None, 0)
            for job in jobs
        ),
        "removed_job_count": sum(job.record.status == "Removed" for job in jobs),
        "block_count": distinct(lambda job: job.block),
        "task_count": distinct(lambda job: job.record.workflow),
        "distinct_users": distinct(lambda job: job.record.user_name),
        "read_bytes": total(job.record.read_bytes for job in jobs),
        "cpu_time": None if cpu is None else cpu / 1000,
        "wc_time": None if wall is None else wall / 1000,
        "first_ms": min(times),
        "last_ms": max(times),
    }
