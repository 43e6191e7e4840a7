"""HTCondor's records of jobs: JSON lines (rules 29 to 33 of ``docs/counting.md``).

A record is of a job, not of an access to a file. One job has many records; those of
jobs that ended leave the decoder as :class:`cmsspark.base.access.HtcondorJob`, and
:mod:`cmsspark.counting.htcondor_jobs` decides which of them counts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import date
from typing import Any, Final

from cmsspark.base import dates
from cmsspark.base.access import AccessBatch, HtcondorJob
from cmsspark.sources.fields import UNKNOWN, Apps, MemoDict, person_name, site_name
from cmsspark.sources.formats.fast_keys import JobKeys, fast_job_lines
from cmsspark.sources.formats.json_lines import CheckedRecord, JsonDecoder, line_type, split
from cmsspark.sources.formats.strict_json import Fields
from cmsspark.sources.record_schema import FormatVersions, RecordSchema, load_schema
from cmsspark.sources.values import MAX_LONG, Malformed, hours_in_ms

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
        self.schema = in_compiled_order(load_schema(f"{self.stream}/{format_name}", is_open=True))
        self.data_type = self.schema.struct("JobData")
        super().__init__(day, apps, format_name)
        self._sites: MemoDict[str | None, str] = MemoDict(site_name, Apps.CACHE_SIZE)
        self._users: MemoDict[str | None, str | None] = MemoDict(person_name, Apps.CACHE_SIZE)
        self._fast_lines = fast_job_lines(
            self.day_number, job_keys(self.schema), self._add_fast, self._fast_group
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


def in_compiled_order(schema: RecordSchema) -> RecordSchema:
    """Return the schema with the fields in the order in which compiled code returns their values."""
    order = (*_ORDER, *(column.feeds for column in schema.needed))
    kinds = ("string", "double", "signed", "flag", "long")
    columns = sorted(
        schema.needed, key=lambda column: (kinds.index(column.type), order.index(column.feeds))
    )
    return replace(schema, columns=tuple(columns))


def job_keys(schema: RecordSchema) -> JobKeys:
    """Return the keys of a schema in that order, as compiled code takes them."""
    groups = (("string",), ("double",), ("signed", "flag"), ("long",))
    return JobKeys(
        *(
            tuple(field.key for field in schema.fields if field.column.type in group)
            for group in groups
        )
    )


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
