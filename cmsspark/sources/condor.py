"""HTCondor's records of jobs: JSON lines (rules 29 to 33 of ``docs/counting.md``).

A record is of a job, not of an access to a file. One job has many records; those of jobs that ended leave the decoder
as :class:`cmsspark.base.access.HtcondorJob`, and :mod:`cmsspark.counting.htcondor_jobs` decides which of them counts.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import date
from typing import Annotated, Any, ClassVar, Final, NamedTuple

import msgspec
from msgspec.structs import astuple

from cmsspark.base import dates
from cmsspark.base.access import AccessBatch, HtcondorJob
from cmsspark.base.schemas import input_table
from cmsspark.sources.fields import UNKNOWN, Apps, MemoDict
from cmsspark.sources.formats.fast_keys import FastKeyReader, JobKeys, fast_job_lines
from cmsspark.sources.formats.json_lines import JsonDecoder, Metadata, objects, parts_of
from cmsspark.sources.formats.strict_json import Fields, last
from cmsspark.sources.record_schema import FormatVersions, RecordSchema
from cmsspark.sources.values import (
    MAX_LONG,
    Flag,
    Hours,
    Long,
    Malformed,
    WholeNumber,
    flag,
    hours,
    hours_in_ms,
    long,
    signed,
    text,
    whole,
)

#: Statuses of jobs that ended. Error (transferring output) is not among them.
FINAL: Final = ("Completed", "Removed")
#: Types that count, in lower case.
TYPES: Final = ("analysis", "production")


class JobFields(NamedTuple):
    """The needed fields of a record, name → key, in the order of compiled code (see ``JobKeys``).

    Sizes in bytes, CPU and wall-clock times in hours; the flags are read behind the whole numbers.
    """

    texts: Mapping[str, str]
    hours: Mapping[str, str]
    wholes: Mapping[str, str]
    flags: Mapping[str, str]
    longs: Mapping[str, str]

    @property
    def keys(self) -> JobKeys:
        """The keys as compiled code takes them."""
        texts, hours_, wholes, flags, longs = (tuple(group.values()) for group in self)
        return JobKeys(texts, hours_, wholes + flags, longs)

    def record_type(self, name: str) -> tuple[Any, Any]:
        """Return the type of a line, and of its ``data``."""
        kinds: tuple[Any, ...] = (str, Hours, WholeNumber, Flag, Long)
        fields: list[Any] = [
            (field, kind | None, None) for group, kind in zip(self, kinds, strict=True) for field in group
        ]
        fields[0] = ("job_id", Annotated[str, msgspec.Meta(min_length=1)])
        rename = {field: key for group in self for field, key in group.items()}
        data = msgspec.defstruct(f"{name}Data", fields, gc=False, rename=rename)
        line: list[Any] = [("data", data), ("metadata", Metadata | None, None)]
        return msgspec.defstruct(f"{name}Record", line, gc=False), data


FIELDS: Final = JobFields(
    texts={
        "job_id": "GlobalJobId",
        "status": "Status",
        "type": "Type",
        "site": "Site",
        "data_block": "CRAB_DataBlock",
        "desired_dataset": "DESIRED_CMSDataset",
        "user": "CRAB_UserHN",
        "workflow": "CRAB_Workflow",
        "tool": "CMS_SubmissionTool",
        "agent": "CMS_WMTool",
    },
    hours={"cpu": "CpuTimeHr", "wall": "WallClockHr"},
    wholes={"exit_code": "ExitCode"},
    flags={},
    longs={"record_time": "RecordTime", "read_bytes": "ChirpCMSSWReadBytes"},
)


class JobDecoder(JsonDecoder):
    """Decodes HTCondor's lines with some fields of theirs."""

    fields: ClassVar[JobFields]
    data_type: ClassVar[Any]

    def __init__(self, day: date, apps: Apps, format_name: str = "json") -> None:
        super().__init__(day, apps, format_name)
        self._sites: MemoDict[str | None, str] = MemoDict(job_site, Apps.CACHE_SIZE)
        self._users: MemoDict[str | None, str | None] = MemoDict(job_user, Apps.CACHE_SIZE)
        self._wall = list(self.data_type.__struct_fields__).index("wall")
        self._fast_lines = self._fast_reader(self.fields.keys)

    def _fast_reader(self, keys: JobKeys) -> FastKeyReader | None:
        return fast_job_lines(self.day_number, keys, self._add_fast)

    @classmethod
    def format_versions(cls) -> FormatVersions:
        """Return one version, with over a thousand fields, of which the schema has those that are needed."""
        schema = RecordSchema.of("json", input_table(f"{cls.stream}/json").columns, is_open=True)
        return FormatVersions({"json": schema}, lambda data: ("json", data) if isinstance(data, dict) else None)

    def _add_fast(self, rows: list[tuple[Any, ...]], batch: AccessBatch) -> None:
        """Add records that compiled code read: of the day, of jobs that ended and count."""
        for row in rows:
            self._add_ended(row[:-1], row[-1], batch)

    def _add_ended(self, values: tuple[Any, ...], time_ms: int | None, batch: AccessBatch) -> None:
        """Add a record of a job that ended, given its values in the order of ``fields``, unless it never ran."""
        if values[self._wall]:
            batch.jobs.append(self._job(values, time_ms or 0))
        else:
            batch.count_job("never_ran")

    def _job(self, values: tuple[Any, ...], time_ms: int) -> Any:
        raise NotImplementedError

    def strict(self, fields: Fields) -> Any:
        """Return the record of a strictly parsed line. Raises Malformed."""
        values, metadata = parts_of(fields)
        values_of: dict[str, Any] = {}
        for data in objects(values):
            for group, check in zip(self.fields, (text, hours, signed, flag, long), strict=True):
                for name, key in group.items():
                    values_of[name] = last(data, key, whole if name == "record_time" else check, "data.")
        if not values_of["job_id"]:
            raise Malformed("data.GlobalJobId: missing or empty")
        return self.record_type(self.data_type(**values_of), metadata)


class CondorDecoder(JobDecoder):
    """Decodes HTCondor's lines. Batches have jobs that ended, and no accesses."""

    stream = "condor"
    fields = FIELDS
    record_type, data_type = FIELDS.record_type("Condor")

    def take(self, records: list[Any], batch: AccessBatch) -> None:
        """Bin records as out_of_day, not_final, other_type or never_ran (rule 30); all others are of ended jobs."""
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
                self._add_ended(astuple(data), record_time(data.record_time, stamp), batch)

    def _job(self, values: tuple[Any, ...], time_ms: int) -> HtcondorJob:
        (job_id, status, type_, site, data_block, desired_dataset, user, workflow, tool, agent,
         cpu, wall, exit_code, _, read_bytes) = values  # fmt: skip
        return HtcondorJob(
            job_id,
            status == FINAL[0],
            time_ms,
            hours_in_ms(wall),
            None if cpu is None else hours_in_ms(cpu),
            None if read_bytes is None else int(read_bytes),
            exit_code,
            data_block,
            desired_dataset,
            self._sites[site],
            self._users[user],
            job_app(self.apps.of[tool or agent], workflow),
            workflow,
            type_.lower() == TYPES[0],
        )


def record_time(logged: int | float | None, stamp: int | float | None) -> int | None:
    """Return the time of a record in ms: RecordTime, else the time of delivery; None without both."""
    time = stamp if logged is None else logged
    return None if time is None else min(dates.timestamp_ms(int(time)), MAX_LONG)


def job_site(logged: str | None) -> str:
    """Return the site of a job (rule 33): without outer blanks and one ``_Disk`` at the end; ``unknown`` where it is
    none.
    """
    name = (logged or "").strip().removesuffix("_Disk")
    return name if name and name.lower() != UNKNOWN else UNKNOWN


def job_app(app: str, workflow: str | None) -> str:
    """Return the app of a job (rule 33): one that names a CRAB workflow is a CRAB job, whatever its tool says."""
    return "crab" if workflow and app in ("other", UNKNOWN) else app


def job_user(logged: str | None) -> str | None:
    """Return the user of a job (rule 33); None where nobody is named."""
    name = (logged or "").strip()
    return name if name and name.lower() != UNKNOWN else None
