"""HTCondor's records of jobs with what they cost (rules 49 to 54 of ``docs/counting.md``).

The records are those of the stream ``condor``, read with more fields. Those that ended leave the decoder as
:class:`JobCost`. A record of a running job is a presence: the job's id is in ``AccessBatch.lfns``, its
:class:`CoreGroup` in ``groups`` and the 12-minute window in ``read_bytes``: compiled code packs them as accesses.
"""

from __future__ import annotations

import math
from datetime import date
from typing import Any, Final, NamedTuple

import msgspec

from cmsspark.base import dates
from cmsspark.base.access import AccessBatch
from cmsspark.base.schemas import input_table
from cmsspark.sources.condor import FINAL, TEXT_KEYS, JobData, job_app, job_site, job_user
from cmsspark.sources.fields import UNKNOWN, Apps, MemoDict
from cmsspark.sources.formats.fast_keys import CostKeys, fast_cost_lines
from cmsspark.sources.formats.json_lines import JsonDecoder, Metadata, objects, parts_of
from cmsspark.sources.formats.strict_json import Fields, last
from cmsspark.sources.record_schema import FormatVersions, RecordSchema
from cmsspark.sources.values import (
    MAX_LONG,
    Flag,
    Hours,
    Malformed,
    flag,
    hours,
    hours_in_ms,
    long,
    signed,
    text,
    whole,
)

RUNNING: Final = "Running"
#: Milliseconds of a window, and windows of a day and of an hour (rule 54).
WINDOW_MS: Final = 720_000
DAY_WINDOWS, HOUR_WINDOWS = 120, 5
#: The outcomes of a job (rule 51).
OK, OUTLIER, FAILED, REMOVED = "ok", "outlier", "failed", "removed"
#: The largest sum of a stored column, and a value beyond it.
TOO_LARGE: Final = MAX_LONG + 1
_TIERS: Final = ("T0", "T1", "T2", "T3")

_MORE_TEXTS: Final = {
    "job_type": "CMS_JobType",
    "campaign": "Workflow",
    "request": "WMAgent_RequestName",
    "schedd": "ScheddName",
    "tier": "Tier",
    "subsite": "MachineAttrCMSSubSiteName0",
}
_NUMBERS: Final = {
    "cpus": "RequestCpus",
    "core_hours": "CoreHr",
    "committed_core": "CommittedCoreHr",
    "committed_wall": "CommittedWallClockHr",
    "max_wall_minutes": "MaxWallTimeMins",
    "chirp_read_ms": "ChirpCMSSWReadTimeMsecs",
    "chirp_elapsed": "ChirpCMSSWElapsed",
    "hs06": "HS06CpuTimeHr",
}
_FLAGS: Final = {"is_outlier": "CpuEffOutlier", "has_failed": "JobFailed"}


class CostData(JobData, gc=False, rename={**_MORE_TEXTS, **_NUMBERS, **_FLAGS}):
    """Needed fields; those of the stream ``condor`` come first."""

    job_type: str | None = None
    campaign: str | None = None
    request: str | None = None
    schedd: str | None = None
    tier: str | None = None
    subsite: str | None = None
    cpus: Hours | None = None
    core_hours: Hours | None = None
    committed_core: Hours | None = None
    committed_wall: Hours | None = None
    max_wall_minutes: Hours | None = None
    chirp_read_ms: Hours | None = None
    chirp_elapsed: Hours | None = None
    hs06: Hours | None = None
    is_outlier: Flag | None = None
    has_failed: Flag | None = None


class CostRecord(msgspec.Struct, gc=False):
    """A line."""

    data: CostData
    metadata: Metadata | None = None


class CoreGroup(NamedTuple):
    """What running jobs are summed by, and the cores of one: ⌊RequestCpus × 1000 + 0.5⌋."""

    site: str
    subsite: str | None
    type: str
    core_milli: int


class JobCost(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """A record of a job that ended and ran. The fields up to ``task`` decide which record of a job counts (rule 31), in
    this order; the others decide between records that are equal in these, so that the order of files does not.
    """

    job_id: str
    is_completed: bool
    time_ms: int
    wall_ms: int
    cpu_ms: int | None
    read_bytes: int | None
    exit_code: int | None
    data_block: str | None
    desired_dataset: str | None
    site: str
    #: The person's name as logged, or None.
    user: str | None
    app: str
    #: CRAB_Workflow, which is never stored (rule 61).
    task: str | None
    type: str
    job_type: str
    campaign: str | None
    request: str | None
    subsite: str | None
    tier: str
    outcome: str
    schedd: str | None
    core_milli: int
    core_ms: int
    core_hours_ms: int | None
    committed_core_ms: int | None
    committed_wall_ms: int | None
    max_wall_ms: int | None
    chirp_read_ms: int | None
    chirp_elapsed_ms: int | None
    hs06_cpu_ms: int | None

    def rank(self) -> tuple[Any, ...]:
        """Return the order of the records of one job, of which the last counts; null is lower than any value."""
        values = (getattr(self, name) for name in self.__struct_fields__[1:])
        return tuple((value is not None, "" if value is None else value) for value in values)


class CostDecoder(JsonDecoder):
    """Decodes HTCondor's lines. Batches have jobs that ended, presences of running jobs, and windows with records."""

    stream = "condor_costs"
    record_type = CostRecord

    def __init__(self, day: date, apps: Apps, format_name: str = "json") -> None:
        super().__init__(day, apps, format_name)
        self._start_ms = dates.start_ms(day)
        self._sites: MemoDict[str | None, str] = MemoDict(job_site, Apps.CACHE_SIZE)
        self._groups: list[CoreGroup] = []
        self._numbers: dict[CoreGroup, int] = {}
        keys = CostKeys(
            ("GlobalJobId", "Status", "Site", "MachineAttrCMSSubSiteName0", "Type", *_OTHER_TEXTS),
            ("RequestCpus", "WallClockHr", *_OTHER_NUMBERS),
            ("CpuEffOutlier", "JobFailed", "ExitCode"),
            ("RecordTime", "ChirpCMSSWReadBytes"),
        )
        self._fast_lines = fast_cost_lines(self.day_number, keys, self._fast_group, self._add_fast)

    @classmethod
    def format_versions(cls) -> FormatVersions:
        """Return the one version, with over a thousand fields, of which the schema has those that are needed."""
        schema = RecordSchema.of("json", input_table("condor_costs/json").columns, is_open=True)
        return FormatVersions({"json": schema}, lambda data: ("json", data) if isinstance(data, dict) else None)

    @property
    def groups(self) -> list[Any]:
        """The groups that presences refer to."""
        return self._groups

    def take(self, records: list[Any], batch: AccessBatch) -> None:
        """Bin the records, and add presences and jobs that ended."""
        for record in records:
            stamp = record.metadata.timestamp if record.metadata is not None else None
            if stamp is not None and not self.low_ms <= stamp < self.high_ms and self._is_out_of_day(stamp, batch):
                continue
            data = record.data
            time_ms = record_time(data.record_time, stamp)
            window = -1 if time_ms is None else (time_ms - self._start_ms) // WINDOW_MS
            if 0 <= window < DAY_WINDOWS:
                batch.windows |= 1 << window
                if data.status == RUNNING:
                    self._add_presence(data, window, batch)
            self._add(data, time_ms, batch)

    def _add(self, data: CostData, time_ms: int | None, batch: AccessBatch) -> None:
        if data.status not in FINAL:
            batch.count_job("not_final")
        elif not data.wall:
            batch.count_job("never_ran")
        else:
            batch.jobs.append(self._cost(data, time_ms or 0))

    def _add_presence(self, data: CostData, window: int, batch: AccessBatch) -> None:
        batch.lfns.append(data.job_id)
        batch.groups.append(self._group(data.site, data.subsite, data.type, data.cpus))
        if batch.read_bytes is None:
            batch.read_bytes = []
        batch.read_bytes.append(window)

    def _group(self, site: str | None, subsite: str | None, type_: str | None, cpus: int | float | None) -> int:
        """Return the number of a group."""
        group = CoreGroup(self._sites[site], subsite or None, type_.lower() if type_ else UNKNOWN, cores(cpus))
        number = self._numbers.setdefault(group, len(self._groups))
        if number == len(self._groups):
            self._groups.append(group)
        return number

    def _fast_group(self, texts: tuple[str | None, ...]) -> int:
        site, subsite, type_, cpus = texts
        return self._group(site, subsite, type_, None if cpus is None else float(cpus))

    def _cost(self, data: Any, time_ms: int) -> JobCost:
        cpus = 1 if data.cpus is None else data.cpus
        has_chirp = data.chirp_read_ms is not None and data.chirp_elapsed is not None
        has_both_walls = data.max_wall_minutes is not None and data.committed_wall is not None
        return JobCost(
            data.job_id,
            data.status == FINAL[0],
            time_ms,
            hours_in_ms(data.wall),
            _ms(data.cpu),
            None if data.read_bytes is None else int(data.read_bytes),
            data.exit_code,
            data.data_block,
            data.desired_dataset,
            self._sites[data.site],
            job_user(data.user),
            job_app(self.apps.of[data.tool or data.agent], data.workflow),
            data.workflow,
            data.type.lower() if data.type else UNKNOWN,
            data.job_type or UNKNOWN,
            data.campaign or None,
            data.request or None,
            data.subsite or None,
            site_tier(data.tier),
            outcome(data),
            data.schedd or None,
            cores(data.cpus),
            min(hours_in_ms(data.wall * cpus), TOO_LARGE),
            _ms(data.core_hours),
            _ms(data.committed_core),
            _ms(data.committed_wall),
            _rounded(data.max_wall_minutes * 60_000) if has_both_walls else None,
            _rounded(data.chirp_read_ms) if has_chirp else None,
            _rounded(data.chirp_elapsed * 1000) if has_chirp else None,
            _ms(data.hs06),
        )

    def _add_fast(self, rows: list[tuple[Any, ...]], windows: int, batch: AccessBatch) -> None:
        """Add records that compiled code read: of the day, final, with a wall-clock time; and the windows of all."""
        batch.windows |= windows
        for job_id, status, site, subsite, type_, *others, record_time_, read_bytes, stamp in rows:
            texts, spans = others[: len(_OTHER_TEXTS)], others[len(_OTHER_TEXTS) :]
            times = [None if span is None else float(span) for span in spans[: 2 + len(_OTHER_NUMBERS)]]
            is_outlier, has_failed, exit_code = (None if span is None else int(span) for span in spans[-3:])
            named: dict[str, Any] = dict(zip(_OTHER_TEXT_NAMES, texts, strict=True))
            named |= dict(zip(("cpus", "wall", *_OTHER_NUMBER_NAMES), times, strict=True))
            data = CostData(
                job_id, status, type_, site, subsite=subsite, record_time=record_time_, read_bytes=read_bytes,
                exit_code=exit_code, is_outlier=is_outlier, has_failed=has_failed, **named,
            )  # fmt: skip
            self._add(data, record_time(record_time_, stamp), batch)

    def strict(self, fields: Fields) -> Any:
        """Return the record of a strictly parsed line. Raises Malformed."""
        values, metadata = parts_of(fields)
        values_of: dict[str, Any] = {}
        for data in objects(values):
            for names, check in _CHECKS:
                values_of |= {name: last(data, key, check, "data.") for name, key in names.items()}
        if not values_of["job_id"]:
            raise Malformed("data.GlobalJobId: missing or empty")
        return CostRecord(CostData(**values_of), metadata)


#: Texts and numbers that only jobs that ended need, by name and by key, in the order in which compiled code reads them.
_OTHER_TEXT_KEYS: Final = {
    name: key
    for name, key in (TEXT_KEYS | _MORE_TEXTS).items()
    if name not in ("status", "type", "site", "subsite")
}  # fmt: skip
_OTHER_TEXT_NAMES, _OTHER_TEXTS = tuple(_OTHER_TEXT_KEYS), tuple(_OTHER_TEXT_KEYS.values())
_OTHER_NUMBER_KEYS: Final = {"cpu": "CpuTimeHr", **{name: key for name, key in _NUMBERS.items() if name != "cpus"}}
_OTHER_NUMBER_NAMES, _OTHER_NUMBERS = tuple(_OTHER_NUMBER_KEYS), tuple(_OTHER_NUMBER_KEYS.values())
_CHECKS: Final = (
    ({"job_id": "GlobalJobId", **TEXT_KEYS, **_MORE_TEXTS}, text),
    ({"record_time": "RecordTime"}, whole),
    ({"read_bytes": "ChirpCMSSWReadBytes"}, long),
    ({"cpu": "CpuTimeHr", "wall": "WallClockHr", **_NUMBERS}, hours),
    ({"exit_code": "ExitCode"}, signed),
    (_FLAGS, flag),
)


def record_time(logged: int | float | None, stamp: int | float | None) -> int | None:
    """Return the time of a record in ms: RecordTime, else the time of delivery; None without both."""
    time = stamp if logged is None else logged
    return None if time is None else min(dates.timestamp_ms(int(time)), MAX_LONG)


def cores(cpus: int | float | None) -> int:
    """Return cores in thousandths, rounded half up; 1,000 where the record names none (rule 51)."""
    return 1000 if cpus is None else _rounded(cpus * 1000)


def site_tier(logged: str | None) -> str:
    """Return T0 to T3, or ``unknown``."""
    name = (logged or "").upper()
    return name if name in _TIERS else UNKNOWN


def outcome(data: Any) -> str:
    """Return how a job ended (rule 51)."""
    if data.status != FINAL[0]:
        return REMOVED
    if data.has_failed == 1 or (data.has_failed is None and data.exit_code not in (None, 0)):
        return FAILED
    return OUTLIER if data.is_outlier == 1 else OK


def _rounded(number: int | float) -> int:
    return math.floor(number + 0.5)


def _ms(hours_: int | float | None) -> int | None:
    return None if hours_ is None else hours_in_ms(hours_)
