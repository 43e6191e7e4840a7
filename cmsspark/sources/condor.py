"""HTCondor's records of jobs: JSON lines (rules 29 to 33 of ``docs/counting.md``).

A record is of a job, not of an access to a file. One job has many records; those of jobs that ended leave the decoder
as :class:`cmsspark.base.access.EndedJob`, and :mod:`cmsspark.counting.htcondor_jobs` decides which of them counts.
"""

from __future__ import annotations

from datetime import date
from typing import Annotated, Any, Final

import msgspec

from cmsspark.base import dates
from cmsspark.base.access import AccessBatch, EndedJob
from cmsspark.base.schemas import input_table
from cmsspark.sources.fields import UNKNOWN, Apps, MemoDict
from cmsspark.sources.formats.fast_keys import JobKeys, fast_job_lines
from cmsspark.sources.formats.json_lines import JsonDecoder, Metadata, objects, parts_of
from cmsspark.sources.formats.strict_json import Fields, last
from cmsspark.sources.record_schema import FormatVersions, RecordSchema
from cmsspark.sources.values import (
    MAX_LONG,
    Hours,
    Long,
    Malformed,
    WholeNumber,
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

#: The texts of a record beside its id, by name.
TEXT_KEYS: Final = {
    "status": "Status",
    "type": "Type",
    "site": "Site",
    "data_block": "CRAB_DataBlock",
    "desired_dataset": "DESIRED_CMSDataset",
    "user": "CRAB_UserHN",
    "workflow": "CRAB_Workflow",
    "tool": "CMS_SubmissionTool",
    "agent": "CMS_WMTool",
}
_RENAMED: Final = {
    "job_id": "GlobalJobId",
    **TEXT_KEYS,
    "record_time": "RecordTime",
    "read_bytes": "ChirpCMSSWReadBytes",
    "cpu": "CpuTimeHr",
    "wall": "WallClockHr",
    "exit_code": "ExitCode",
}


class JobData(msgspec.Struct, gc=False, rename=_RENAMED):
    """Needed fields; sizes in bytes, CPU and wall-clock times in hours."""

    job_id: Annotated[str, msgspec.Meta(min_length=1)]
    status: str | None = None
    type: str | None = None
    site: str | None = None
    data_block: str | None = None
    desired_dataset: str | None = None
    user: str | None = None
    workflow: str | None = None
    tool: str | None = None
    agent: str | None = None
    record_time: Long | None = None
    read_bytes: Long | None = None
    cpu: Hours | None = None
    wall: Hours | None = None
    exit_code: WholeNumber | None = None


class CondorRecord(msgspec.Struct, gc=False):
    """A line."""

    data: JobData
    metadata: Metadata | None = None


class CondorDecoder(JsonDecoder):
    """Decodes HTCondor's lines. Batches have jobs that ended, and no accesses."""

    stream = "condor"
    record_type = CondorRecord

    def __init__(self, day: date, apps: Apps, format_name: str = "json") -> None:
        super().__init__(day, apps, format_name)
        self._sites: MemoDict[str | None, str] = MemoDict(job_site, Apps.CACHE_SIZE)
        keys = JobKeys("GlobalJobId", tuple(TEXT_KEYS.values()), ("CpuTimeHr", "WallClockHr"), "ExitCode",
                       ("RecordTime", "ChirpCMSSWReadBytes"))  # fmt: skip
        self._fast_lines = fast_job_lines(self.day_number, keys, self._add_fast)

    @classmethod
    def format_versions(cls) -> FormatVersions:
        """Return one version, with over a thousand fields, of which the schema has those that are needed."""
        schema = RecordSchema.of("json", input_table("condor/json").columns, is_open=True)
        return FormatVersions({"json": schema}, lambda data: ("json", data) if isinstance(data, dict) else None)

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
            elif not data.wall:
                batch.count_job("never_ran")
            else:
                batch.jobs.append(self._job(data, stamp))

    def _job(self, data: Any, stamp: int | float | None) -> EndedJob:
        time = data.record_time if data.record_time is not None else stamp
        return EndedJob(
            data.job_id,
            data.status == FINAL[0],
            0 if time is None else min(dates.timestamp_ms(int(time)), MAX_LONG),
            hours_in_ms(data.wall),
            None if data.cpu is None else hours_in_ms(data.cpu),
            None if data.read_bytes is None else int(data.read_bytes),
            data.exit_code,
            data.data_block,
            data.desired_dataset,
            self._sites[data.site],
            job_user(data.user),
            job_app(self.apps.of[data.tool or data.agent], data.workflow),
            data.workflow,
            data.type.lower() == TYPES[0],
        )

    def _add_fast(self, rows: list[tuple[Any, ...]], batch: AccessBatch) -> None:
        """Add records that compiled code read: of the day, final, of a type that counts, with a wall-clock time."""
        for job_id, *texts, cpu, wall, exit_code, record_time, read_bytes, stamp in rows:
            times = (None if cpu is None else float(cpu), float(wall))
            code = None if exit_code is None else int(exit_code)
            data = JobData(*(job_id, *texts, record_time, read_bytes, *times, code))
            if data.wall:
                batch.jobs.append(self._job(data, stamp))
            else:
                batch.count_job("never_ran")

    def strict(self, fields: Fields) -> Any:
        """Return the record of a strictly parsed line. Raises Malformed."""
        values, metadata = parts_of(fields)
        values_of: dict[str, Any] = {}
        for data in objects(values):
            values_of = {name: last(data, key, text, "data.") for name, key in TEXT_KEYS.items()}
            values_of["job_id"] = last(data, "GlobalJobId", text, "data.")
            values_of["record_time"] = last(data, "RecordTime", whole, "data.")
            values_of["read_bytes"] = last(data, "ChirpCMSSWReadBytes", long, "data.")
            values_of["cpu"] = last(data, "CpuTimeHr", hours, "data.")
            values_of["wall"] = last(data, "WallClockHr", hours, "data.")
            values_of["exit_code"] = last(data, "ExitCode", signed, "data.")
        if not values_of["job_id"]:
            raise Malformed("data.GlobalJobId: missing or empty")
        return CondorRecord(JobData(**values_of), metadata)


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
