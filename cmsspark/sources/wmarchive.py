"""WMArchive's framework job reports: JSON lines (rules 56 to 58 of ``docs/counting.md``).

Every well-formed record leaves the decoder as a :class:`JobReport`, also one that no
table of the day counts: the next day must know its id.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, Final

import msgspec

from cmsspark.base.access import AccessBatch
from cmsspark.sources.formats import strict_json
from cmsspark.sources.formats.chunk import Chunk
from cmsspark.sources.formats.json_lines import BLANK_LINE, REJECTED, JsonDecoder, split
from cmsspark.sources.formats.strict_json import Fields
from cmsspark.sources.record_schema import FormatVersions, load_schema
from cmsspark.sources.values import (
    UNKNOWN,
    Hours,
    Long,
    Malformed,
    Number,
    WholeNumber,
    integer,
    long,
    name_type,
    signed,
    site_name,
    text,
)

# The needed fields of WMArchive's reports, typed: plain lines by msgspec, all others
# strictly.

#: What the agents write for a number that is not there, beside NaN.
NO_NUMBERS: Final = (-1, -2)
#: The largest value that fits 64 bits as milliseconds, or as bytes of MB.
_LARGEST: Final = 10**12
#: Returns what a strictly parsed value means, given its name. Raises Malformed.
Check = Callable[[Any, str], Any]


class Output(
    msgspec.Struct, gc=False, rename={"era": "acquisitionEra", "dataset": "outputDataset"}
):
    """An output of a step. ``dataset``: null if it is no text."""

    era: str | None = None
    events: Long | None = None
    dataset: Any = None


class Cpu(
    msgspec.Struct,
    gc=False,
    rename={
        "streams": "NumberOfStreams",
        "threads": "NumberOfThreads",
        "cpu": "TotalJobCPU",
        "job": "TotalJobTime",
    },
):
    """Threads, streams and seconds of a step."""

    streams: Long | None = None
    threads: Long | None = None
    cpu: Hours | None = None
    job: Hours | None = None


class StorageUse(msgspec.Struct, gc=False, rename="camel"):
    """What a step read and wrote."""

    read_total_mb: Hours | None = msgspec.field(default=None, name="readTotalMB")
    write_total_mb: Hours | None = msgspec.field(default=None, name="writeTotalMB")
    read_total_secs: Hours | None = None
    write_total_secs: Hours | None = None


class MemoryPeaks(
    msgspec.Struct, gc=False, rename={"rss": "PeakValueRss", "vsize": "PeakValueVsize"}
):
    """MB of a step."""

    rss: Hours | None = None
    vsize: Hours | None = None


class Performance(msgspec.Struct, gc=False):
    """Numbers of a step."""

    cpu: Cpu | None = None
    storage: StorageUse | None = None
    memory: MemoryPeaks | None = None


class StepFields(msgspec.Struct, gc=False):
    """A step. ``site``: the agents write ``{}`` where they know none."""

    name: str | None = None
    site: Any = None
    status: WholeNumber | None = None
    output: list[Output | None] | None = None
    performance: Performance | None = None


class MetaData(msgspec.Struct, gc=False):
    """How and where the job ran. ``fwjr_id``: identifies the report where it is a text."""

    jobtype: str | None = None
    jobstate: str | None = None
    host: str | None = None
    fwjr_id: Any = None


class ReportData(msgspec.Struct, gc=False):
    """Needed fields."""

    wmaid: Annotated[str, msgspec.Meta(min_length=1)]
    wmats: Long | None = None
    task: str | None = None
    meta_data: MetaData | None = None
    steps: list[StepFields | None] | None = None


class _Ignored(msgspec.Struct, gc=False):
    """An object of which nothing is needed."""


class ArchivedRecord(msgspec.Struct, gc=False):
    """A line."""

    data: ReportData
    metadata: _Ignored | None = None


def _is_absent(value: Any) -> bool:
    """Return whether a number stands for none."""
    return isinstance(value, Number) and (math.isnan(float(value)) or float(value) in NO_NUMBERS)


def _absent_or(check: Check) -> Check:
    return lambda value, field: None if _is_absent(value) else check(value, field)


def _amount(value: Any, field: str) -> float | None:
    """Return a finite number from 0 on; None for null and a number that stands for
    none. Raises Malformed.
    """
    if value is None:
        return None
    if not isinstance(value, Number):
        raise _unexpected("a number", value, field)
    if _is_absent(value):
        return None
    number = float(value)
    if not 0 <= number <= _LARGEST:
        raise Malformed(f"{field}: a number from 0 to 10^12 is expected")
    return number


def _amount_or_text(value: Any, field: str) -> float | None:
    """As :func:`_amount`, of a number that may be a text; an empty text is null."""
    if isinstance(value, Number) or not isinstance(value, str):
        return _amount(value, field)
    written = (text(value, field) or "").strip()
    if not written:
        return None
    try:
        float(written)
    except ValueError:
        raise Malformed(f"{field}: a number as text is expected, found other text") from None
    return _amount(Number(written), field)


def _text_or_none(value: Any, field: str) -> str | None:
    """Return a text; None for a value of another type. Raises Malformed for invalid text."""
    is_text = isinstance(value, str) and not isinstance(value, Number)
    return text(value, field) if is_text else None


def _object(kind: Any, checks: Mapping[str, Check]) -> Check:
    """Return the check of an object or null: the last value under each key, all of
    which pass, makes ``kind``.
    """

    def check(value: Any, field: str) -> Any:
        if value is None:
            return None
        if not isinstance(value, dict):
            raise _unexpected("an object", value, field)
        return kind(
            *(strict_json.last(value, key, of_key, f"{field}.") for key, of_key in checks.items())
        )

    return check


def _list(check: Check) -> Check:
    """Return the check of a list or null, each of whose values passes ``check``."""

    def check_all(value: Any, field: str) -> Any:
        if value is None:
            return None
        if not isinstance(value, list):
            raise _unexpected("a list", value, field)
        return [check(entry, field) for entry in value]

    return check_all


def _unexpected(expected: str, value: Any, field: str) -> Malformed:
    return Malformed(f"{field}: {expected} is expected, found {name_type(value)}")


_COUNT: Final = _absent_or(long)
_STEP: Final = _object(
    StepFields,
    {
        "name": text,
        "site": _text_or_none,
        "status": _absent_or(signed),
        "output": _list(
            _object(
                Output,
                {"acquisitionEra": text, "events": _COUNT, "outputDataset": _text_or_none},
            )
        ),
        "performance": _object(
            Performance,
            {
                "cpu": _object(
                    Cpu,
                    {
                        "NumberOfStreams": _COUNT,
                        "NumberOfThreads": _COUNT,
                        "TotalJobCPU": _amount,
                        "TotalJobTime": _amount,
                    },
                ),
                "storage": _object(
                    StorageUse,
                    {
                        "readTotalMB": _amount,
                        "writeTotalMB": _amount,
                        "readTotalSecs": _amount_or_text,
                        "writeTotalSecs": _amount_or_text,
                    },
                ),
                "memory": _object(
                    MemoryPeaks, {"PeakValueRss": _amount, "PeakValueVsize": _amount}
                ),
            },
        ),
    },
)
_REPORT: Final = _object(
    ReportData,
    {
        "wmaid": text,
        "wmats": _absent_or(integer),
        "task": text,
        "meta_data": _object(
            MetaData, {"jobtype": text, "jobstate": text, "host": text, "fwjr_id": _text_or_none}
        ),
        "steps": _list(_STEP),
    },
)


#: The types of jobs whose steps count (rule 56).
JOB_TYPES: Final = ("Production", "Processing", "Merge", "LogCollect", "Harvesting")
SUCCESS: Final = "success"
#: Bins that a record alone decides; a report in none of them may count.
OUT_OF_DAY, FAILED, OTHER_TYPE = "out_of_day", "failed", "other_type"
#: Bytes of the agents' MB, which CMSSW counts as 1,024 × 1,024.
_MIB: Final = 1 << 20
#: A time of reads or writes is implausible above so many times that of the step's
#: threads: CMSSW adds the times of all concurrent operations.
_IMPLAUSIBLE: Final = 10
#: Objects in objects of a record, down to the deepest needed field, with the lists between them.
_LEVELS: Final = 7


class ReportedStep(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """A step of a job whose name begins with cmsRun; what is unknown is None."""

    name: str
    site: str
    era: str | None
    threads: int | None
    streams: int | None
    cpu_ms: int | None
    job_ms: int | None
    thread_ms: int | None
    read_bytes: int | None
    write_bytes: int | None
    read_ms: int | None
    write_ms: int | None
    rss_mb: float | None
    vsize_mb: float | None
    has_failed: bool
    events: int | None
    #: Times of reads and writes that are left out.
    implausible: int


class JobReport(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """A well-formed report. ``job_id``: what it is known by, see :func:`report_id`.
    ``bin``: the bin that it alone decides, or empty. ``line``: its bytes without
    newline.
    """

    job_id: str
    bin: str
    line: bytes
    host: str
    has_failed: bool
    task: str
    job_type: str
    step_count: int
    sites: list[str]
    steps: list[ReportedStep]

    @property
    def read_bytes(self) -> int:
        """The largest number of bytes that a step read."""
        return max((step.read_bytes or 0 for step in self.steps), default=0)

    @property
    def cpu_ms(self) -> int:
        """The largest CPU time of a step."""
        return max((step.cpu_ms or 0 for step in self.steps), default=0)

    @property
    def wall_ms(self) -> int:
        """The longest step."""
        return max((step.job_ms or 0 for step in self.steps), default=0)

    def rank(self) -> tuple[int, bytes]:
        """Return the order of the records of one report, of which the last counts: the
        longest line.
        """
        return len(self.line), self.line


class ReportDecoder(JsonDecoder):
    """Decodes WMArchive's lines. Batches have a :class:`JobReport` for each well-formed record."""

    stream = "wmarchive"

    def line_types(self) -> Sequence[Any]:
        """Return the type of a line."""
        return (ArchivedRecord,)

    @classmethod
    def format_versions(cls) -> FormatVersions:
        """Return the one version; its reports have more fields, of which the schema has
        those that are needed.
        """
        return FormatVersions.from_schema(load_schema("wmarchive/json", is_open=True))

    def take(self, records: list[Any], batch: AccessBatch) -> None:
        """Add reports: pairs of a record and its line."""
        for record, line in records:
            meta = record.data.meta_data or MetaData()
            steps = [step for step in record.data.steps or () if step is not None]
            bin_ = self._bin(record.data, meta, batch)
            batch.jobs.append(
                JobReport(
                    report_id(record.data, meta),
                    bin_,
                    line,
                    meta.host or UNKNOWN,
                    meta.jobstate != SUCCESS,
                    record.data.task or "",
                    meta.jobtype or "",
                    len(steps),
                    sorted({site for step in steps if (site := _site(step)) != UNKNOWN}),
                    []
                    if bin_
                    else [
                        _step(step)
                        for step in steps
                        if (step.name or "").lower().startswith("cmsrun")
                    ],
                )
            )

    def _add_at_once(self, chunk: Chunk, first: int, end: int, batch: AccessBatch) -> None:
        # The length of a line decides which report counts, so each is read alone.
        self._add_each(chunk, first, end, batch)

    def _add_each(self, chunk: Chunk, first: int, end: int, batch: AccessBatch) -> None:
        for number in range(first, end):
            line = chunk.line(number)
            if BLANK_LINE.fullmatch(line):
                continue
            batch.read += 1
            try:
                self.take([(self._record(line), line)], batch)
            except Malformed as error:
                batch.malformed.append(chunk.quarantined(number, str(error)))

    def _record(self, line: bytes) -> Any:
        try:
            return self.decode_line(line)
        except REJECTED:
            return self.strict(strict_json.parse_object(line, _LEVELS, has_nan=True))

    def _bin(self, data: ReportData, meta: MetaData, batch: AccessBatch) -> str:
        """Return the bin that a record alone decides, counted; empty for one that may
        count (rule 57).
        """
        if data.wmats is not None and self._is_out_of_day(data.wmats, batch):
            return OUT_OF_DAY
        if meta.jobstate != SUCCESS:
            bin_ = FAILED
        elif meta.jobtype not in JOB_TYPES or data.task is None:
            bin_ = OTHER_TYPE
        else:
            return ""
        batch.count_job(bin_)
        return bin_

    def strict(self, fields: Fields) -> Any:
        """Return the record of a strictly parsed line. Raises Malformed."""
        values, _ = split(
            {
                **fields,
                "metadata": [
                    ({} if isinstance(value, dict) else value)
                    for value in fields.get("metadata", ())
                ],
            }
        )
        data: ReportData | None = None
        for value in values:
            if not isinstance(value, dict):
                raise _unexpected("an object", value, "data")
            if not strict_json.last(value, "wmaid", text, "data."):
                raise Malformed("data.wmaid: missing or empty")
            data = _REPORT(value, "data")
        assert data is not None
        return ArchivedRecord(data)


def report_id(data: ReportData, meta: MetaData) -> str:
    """Return what a report is known by (rule 56): its agent, its number there and its
    task, as each arrival of one report has another ``wmaid``; else that.
    """
    names = (meta.host, meta.fwjr_id, data.task)
    if all(isinstance(name, str) and name for name in names):
        return repr(names)
    return data.wmaid


def _site(step: StepFields) -> str:
    return site_name(step.site if isinstance(step.site, str) else None)


def _step(step: StepFields) -> ReportedStep:
    performance = step.performance or Performance()
    cpu, storage = performance.cpu or Cpu(), performance.storage or StorageUse()
    memory = performance.memory or MemoryPeaks()
    outputs = [output for output in step.output or () if output is not None]
    has_times = cpu.cpu is not None and cpu.job is not None and cpu.threads is not None
    job_ms = _scaled(cpu.job, 1000)
    times = [_scaled(value, 1000) for value in (storage.read_total_secs, storage.write_total_secs)]
    limit = None if job_ms is None else _IMPLAUSIBLE * job_ms * max(1, _integer(cpu.threads) or 0)
    read_ms, write_ms = (
        None if value is None or (limit is not None and value > limit) else value
        for value in times
    )
    # Several outputs have the same events: the largest sum of an output dataset counts
    # (rule 56).
    sums: dict[str | None, int] = {}
    for product in outputs:
        if product.events is not None:
            dataset = product.dataset if isinstance(product.dataset, str) else None
            sums[dataset] = sums.get(dataset, 0) + int(product.events)
    return ReportedStep(
        step.name or "",
        _site(step),
        min((output.era for output in outputs if output.era), default=None),
        _integer(cpu.threads),
        _integer(cpu.streams),
        _scaled(cpu.cpu, 1000),
        job_ms,
        _scaled(cpu.job * cpu.threads, 1000) if has_times else None,  # type: ignore[operator]  # both are there
        _scaled(storage.read_total_mb, _MIB),
        _scaled(storage.write_total_mb, _MIB),
        read_ms,
        write_ms,
        None if memory.rss is None else float(memory.rss),
        None if memory.vsize is None else float(memory.vsize),
        step.status is not None and step.status not in (0, *NO_NUMBERS),
        max(sums.values(), default=None),
        (read_ms, write_ms).count(None) - times.count(None),
    )


def _integer(number: int | float | None) -> int | None:
    return None if number is None else int(number)


def _scaled(number: int | float | None, factor: int) -> int | None:
    """Return a number in smaller units, rounded half up; one beyond 64 bits stays beyond."""
    return None if number is None else min(math.floor(number * factor + 0.5), 2**63)
