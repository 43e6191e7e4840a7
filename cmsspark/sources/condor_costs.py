"""HTCondor's records of jobs with what they cost (rules 49 to 54 of ``docs/counting.md``).

The records are those of the stream ``condor``, read with more fields. Those that ended
leave the decoder as
:class:`JobCost`. A record of a running job is a presence: the job's id is in
       ``AccessBatch.lfns``, its
:class:`CoreGroup` in ``groups`` and the 12-minute window in ``read_bytes``: compiled
       code packs them as accesses.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import date
from math import floor
from typing import Any, Final, NamedTuple

import msgspec
from msgspec.structs import replace

from cmsspark.base import dates
from cmsspark.base.access import AccessBatch, HtcondorJob
from cmsspark.sources.formats.fast_json import JobKeys, fast_job_lines
from cmsspark.sources.formats.json_lines import CheckedRecord, JsonDecoder, line_type, split
from cmsspark.sources.formats.strict_json import Fields
from cmsspark.sources.record_schema import FormatVersions, load_schema
from cmsspark.sources.values import (
    HOUR_MS,
    MAX_LONG,
    UNKNOWN,
    Apps,
    Malformed,
    MemoDict,
    hours_in_ms,
    person_name,
    site_name,
)

# HTCondor's records of jobs: JSON lines (rules 29 to 33 of ``docs/counting.md``).

#: Statuses of jobs that ended. Error (transferring output) is not among them.
FINAL: Final = ("Completed", "Removed")
#: Types that count, in lower case.
TYPES: Final = ("analysis", "production")
#: The attributes that compiled code interprets, which come first among those of their type.
_ORDER: Final = (
    "job_id",
    "status",
    "type",
    "site",
    "subsite",
    "cpu",
    "wall",
    "cpus",
    "core_hours",
    "exit_code",
    "record_time",
)


class JobDecoder(JsonDecoder):
    """Decodes HTCondor's lines with some fields of theirs."""

    #: Numbers groups of running jobs, where costs are read.
    _fast_group: Any = None

    def __init__(self, day: date, apps: Apps, format_name: str = "json") -> None:
        schema = load_schema(f"{self.stream}/{format_name}", is_open=True)
        # Fields in the order in which compiled code returns their values.
        order = (*_ORDER, *(column.feeds for column in schema.needed))
        kinds = ("string", "double", "signed", "flag", "long")
        columns = sorted(
            schema.needed, key=lambda column: (kinds.index(column.type), order.index(column.feeds))
        )
        self.schema = replace(schema, columns=tuple(columns))
        self.data_type = self.schema.struct("JobData")
        super().__init__(day, apps, format_name)
        self._sites: MemoDict[str | None, str] = MemoDict(site_name, Apps.CACHE_SIZE)
        self._users: MemoDict[str | None, str | None] = MemoDict(person_name, Apps.CACHE_SIZE)
        groups = (("string",), ("double",), ("signed", "flag"), ("long",))
        self._fast_lines = fast_job_lines(
            self.day_number,
            JobKeys(
                *(
                    tuple(field.key for field in self.schema.fields if field.column.type in group)
                    for group in groups
                )
            ),
            self._add_fast,
            self._fast_group,
        )

    def line_types(self) -> Sequence[Any]:
        """Return the type of a line."""
        return (line_type("JobLine", self.data_type),)

    @classmethod
    def format_versions(cls) -> FormatVersions:
        """Return one version, with over a thousand fields, of which the schema has
        those that are needed.
        """
        return FormatVersions.from_schema(load_schema(f"{cls.stream}/json", is_open=True))

    def _add_fast(self, rows: list[tuple[Any, ...]], batch: AccessBatch) -> None:
        """Add records that compiled code read: of the day, of jobs that ended and count."""
        for row in rows:
            self._add_ended(self.data_type(*row[:-1]), row[-1], batch)

    def _add_ended(self, data: Any, time_ms: int | None, batch: AccessBatch) -> None:
        """Add a record of a job that ended, unless it never ran."""
        if self.has_run(data):
            batch.jobs.append(self._job(data, time_ms or 0))
        else:
            batch.count_job("never_ran")

    def has_run(self, data: Any) -> bool:
        """Return whether a job that ended ever ran (rule 30)."""
        return bool(data.wall)

    def _job(self, data: Any, time_ms: int) -> Any:
        raise NotImplementedError

    def strict(self, fields: Fields) -> Any:
        """Return the record of a strictly parsed line. Raises Malformed."""
        values, metadata = split(fields)
        checked = self.schema.check_all(values)
        if not checked["job_id"]:
            raise Malformed("data.GlobalJobId: missing or empty")
        return CheckedRecord(self.data_type(**checked), metadata)


class CondorDecoder(JobDecoder):
    """Decodes HTCondor's lines. Batches have jobs that ended, and no accesses."""

    stream = "condor"

    def take(self, records: list[Any], batch: AccessBatch) -> None:
        """Bin records as out_of_day, not_final, other_type or never_ran (rule 30); all
        others are of ended jobs.
        """
        low, high = self.low_ms, self.high_ms
        for record in records:
            stamp = record.metadata.timestamp if record.metadata is not None else None
            if stamp is not None and not low <= stamp < high and self._is_out_of_day(stamp, batch):
                continue
            data = record.data
            if data.status not in FINAL:
                batch.count_job("not_final")
            elif data.type is None or data.type.lower() not in TYPES:
                batch.count_job("other_type")
            else:
                self._add_ended(data, record_time(data.record_time, stamp), batch)

    def _job(self, data: Any, time_ms: int) -> HtcondorJob:
        return HtcondorJob(
            data.job_id,
            data.status == FINAL[0],
            time_ms,
            hours_in_ms(data.wall),
            None if data.cpu is None else hours_in_ms(data.cpu),
            None if data.read_bytes is None else int(data.read_bytes),
            data.exit_code,
            data.data_block,
            data.desired_dataset,
            self._sites[data.site],
            self._users[data.user],
            job_app(self.apps.of[data.tool or data.agent], data.workflow),
            data.workflow,
            data.type.lower() == TYPES[0],
        )


def record_time(logged: int | float | None, stamp: int | float | None) -> int | None:
    """Return the time of a record in ms: RecordTime, else the time of delivery; None without both."""
    time = stamp if logged is None else logged
    return None if time is None else min(dates.timestamp_ms(int(time)), MAX_LONG)


def job_app(app: str, workflow: str | None) -> str:
    """Return the app of a job (rule 33): one that names a CRAB workflow is a CRAB job,
    whatever its tool says.
    """
    return "crab" if workflow and app in ("other", UNKNOWN) else app


RUNNING: Final = "Running"
#: Milliseconds of a window, and windows of a day and of an hour (rule 54).
WINDOW_MS: Final = 720_000
DAY_WINDOWS, HOUR_WINDOWS = 120, 5
#: The outcomes of a job (rule 51).
OK, OUTLIER, FAILED, REMOVED = "ok", "outlier", "failed", "removed"
#: Fields whose meaning changed, and the meaning since (``meanings`` in
#: ``etc/sources.yaml``).
WALL, CORE, LAST_START = "condor.WallClockHr", "condor.CoreHr", "last_start"
#: The largest sum of a stored column, and a value beyond it.
TOO_LARGE: Final = MAX_LONG + 1
#: Tiers as logged, in any case.
_TIER_OF: Final = {
    name: name.upper() for number in range(4) for name in (f"T{number}", f"t{number}")
}


class CoreGroup(NamedTuple):
    """What running jobs are summed by, and the cores of one: ⌊RequestCpus × 1000 + 0.5⌋."""

    site: str
    subsite: str | None
    type: str
    core_milli: int


class JobCost(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """A record of a job that ended and ran. The fields up to ``task`` decide which
    record of a job counts (rule 31), in this order; the others decide between records
    that are equal in these, so that the order of files does not.
    """

    job_id: str
    is_completed: bool
    time_ms: int
    wall_ms: int | None
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
    #: Requested cores × WallClockHr as logged.
    wall_core_ms: int
    #: Of all starts, and of the last one.
    core_ms: int
    last_core_ms: int
    core_hours_ms: int | None
    committed_core_ms: int | None
    committed_wall_ms: int | None
    max_wall_ms: int | None
    chirp_read_ms: int | None
    chirp_elapsed_ms: int | None
    hs06_cpu_ms: int | None

    def is_above(self, cost: JobCost) -> bool:
        """Return whether this record of a job counts rather than the other; null is
        lower than any value.
        """
        for name in self.__struct_fields__[1:]:
            mine, theirs = getattr(self, name), getattr(cost, name)
            if mine != theirs:
                return theirs is None or (mine is not None and bool(mine > theirs))
        return False


class CostDecoder(JobDecoder):
    """Decodes HTCondor's lines. Batches have jobs that ended, presences of running
    jobs, and windows with records.
    """

    stream = "condor_costs"

    def __init__(self, day: date, apps: Apps, format_name: str = "json") -> None:
        self._start_ms = dates.start_ms(day)
        self._numbers: dict[CoreGroup, int] = {}
        self._wall_is_last_start = False
        super().__init__(day, apps, format_name)
        self.groups: list[CoreGroup] = []

    def use_meanings(self, meanings: Mapping[str, str]) -> None:
        """Take what the fields mean on the day (rule 51)."""
        self._wall_is_last_start = meanings[WALL] == LAST_START

    def take(self, records: list[Any], batch: AccessBatch) -> None:
        """Bin the records, and add presences and jobs that ended."""
        for record in records:
            stamp = record.metadata.timestamp if record.metadata is not None else None
            if (
                stamp is not None
                and not self.low_ms <= stamp < self.high_ms
                and self._is_out_of_day(stamp, batch)
            ):
                continue
            data = record.data
            time_ms = record_time(data.record_time, stamp)
            window = -1 if time_ms is None else (time_ms - self._start_ms) // WINDOW_MS
            if 0 <= window < DAY_WINDOWS:
                batch.windows |= 1 << window
                if data.status == RUNNING:
                    batch.lfns.append(data.job_id)
                    batch.groups.append(self._group(data.site, data.subsite, data.type, data.cpus))
                    if batch.read_bytes is None:
                        batch.read_bytes = []
                    batch.read_bytes.append(window)
            if data.status in FINAL:
                self._add_ended(data, time_ms, batch)
            else:
                batch.count_job("not_final")

    def _group(
        self, site: str | None, subsite: str | None, type_: str | None, cpus: int | float | None
    ) -> int:
        """Return the number of a group."""
        group = CoreGroup(
            self._sites[site], subsite or None, type_.lower() if type_ else UNKNOWN, cores(cpus)
        )
        number = self._numbers.setdefault(group, len(self.groups))
        if number == len(self.groups):
            self.groups.append(group)
        return number

    def _fast_group(self, texts: tuple[str | None, ...]) -> int:
        site, subsite, type_, cpus = texts
        return self._group(site, subsite, type_, None if cpus is None else float(cpus))

    def has_run(self, data: Any) -> bool:
        """Return whether a job ran, also in starts before the last one (rule 50)."""
        return bool(data.wall or data.core_hours)

    def _job(self, data: Any, time_ms: int) -> JobCost:
        wall, cpus = data.wall, data.cpus
        wall_core_ms = min(
            floor((wall or 0) * (1 if cpus is None else cpus) * HOUR_MS + 0.5), TOO_LARGE
        )
        core_hours_ms, committed_core_ms = _ms(data.core_hours), _ms(data.committed_core)
        core_ms = max(core_hours_ms or 0, wall_core_ms)
        is_completed = data.status == FINAL[0]
        has_chirp = data.chirp_read_ms is not None and data.chirp_elapsed is not None
        has_both_walls = data.max_wall_minutes is not None and data.committed_wall is not None
        return JobCost(
            data.job_id,
            is_completed,
            time_ms,
            _ms(wall),
            _ms(data.cpu),
            None if data.read_bytes is None else int(data.read_bytes),
            data.exit_code,
            data.data_block,
            data.desired_dataset,
            self._sites[data.site],
            self._users[data.user],
            job_app(self.apps.of[data.tool or data.agent], data.workflow),
            data.workflow,
            data.type.lower() if data.type else UNKNOWN,
            data.job_type or UNKNOWN,
            data.campaign or None,
            data.request or None,
            data.subsite or None,
            _TIER_OF.get(data.tier, UNKNOWN),
            outcome(is_completed, data.has_failed, data.exit_code, data.is_outlier),
            data.schedd or None,
            cores(cpus),
            wall_core_ms,
            core_ms,
            wall_core_ms if self._wall_is_last_start else committed_core_ms or core_ms,
            core_hours_ms,
            committed_core_ms,
            _ms(data.committed_wall),
            floor(data.max_wall_minutes * 60_000 + 0.5) if has_both_walls else None,
            floor(data.chirp_read_ms + 0.5) if has_chirp else None,
            floor(data.chirp_elapsed * 1000 + 0.5) if has_chirp else None,
            _ms(data.hs06),
        )


def cores(cpus: int | float | None) -> int:
    """Return cores in thousandths, rounded half up; 1,000 where the record names none (rule 51)."""
    return 1000 if cpus is None else floor(cpus * 1000 + 0.5)


def outcome(
    is_completed: bool, has_failed: int | None, exit_code: int | None, is_outlier: int | None
) -> str:
    """Return how a job ended (rule 51)."""
    if not is_completed:
        return REMOVED
    if has_failed == 1 or (has_failed is None and exit_code not in (None, 0)):
        return FAILED
    return OUTLIER if is_outlier == 1 else OK


def _ms(hours: float | None) -> int | None:
    """Return milliseconds, rounded half up (rule 33)."""
    return None if hours is None else floor(hours * HOUR_MS + 0.5)
