"""Rules 56 to 58: WMArchive's reports, counted one after the other."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from datetime import date
from fractions import Fraction
from typing import Any

from tests.oracle.fields import site_of
from tests.oracle.records import Malformed, day_named

TYPES = ("Production", "Processing", "Merge", "LogCollect", "Harvesting")


class Numeral(str):
    """A number as it is written."""


class Members(list):  # type: ignore[type-arg]
    """The members of an object."""


def _no(text: str) -> Any:
    if text == "NaN":
        return Numeral(text)
    raise ValueError(text)


def _parse(line: bytes) -> Any:
    try:
        value = json.loads(
            line.decode("utf-8", "surrogateescape"),
            object_pairs_hook=Members,
            parse_int=Numeral,
            parse_float=Numeral,
            parse_constant=_no,
        )
    except ValueError:
        raise Malformed("no JSON") from None
    if not isinstance(value, Members):
        raise Malformed("no object")
    return value


def _get(members: Any, key: str, kind: Callable[[Any], Any]) -> Any:
    if members is None:
        return None
    if not isinstance(members, Members):
        raise Malformed("an object")
    values = [kind(value) for name, value in members if name == key]
    return values[-1] if values else None


def _text(value: Any) -> str | None:
    if value is None:
        return None
    if not isinstance(value, str) or isinstance(value, Numeral):
        raise Malformed("text")
    try:
        value.encode()
    except UnicodeEncodeError:
        raise Malformed("unicode") from None
    return value


def _only_text(value: Any) -> str | None:
    """A text; anything else is as good as nothing."""
    return _text(value) if isinstance(value, str) and not isinstance(value, Numeral) else None


def _object(value: Any) -> Any:
    if value is not None and not isinstance(value, Members):
        raise Malformed("object or null")
    return value


def _objects(value: Any) -> Any:
    if value is None:
        return []
    if not isinstance(value, list) or isinstance(value, Members):
        raise Malformed("list or null")
    return [_object(item) for item in value]


def _amount(value: Any) -> float | None:
    if value is None:
        return None
    if not isinstance(value, Numeral):
        raise Malformed("number")
    number = float(value)
    if math.isnan(number) or number in (-1, -2):
        return None
    if not 0 <= number <= 1e12:
        raise Malformed("size")
    return number


def _amount_text(value: Any) -> float | None:
    if isinstance(value, str) and not isinstance(value, Numeral):
        if not (_text(value) or "").strip():
            return None
        try:
            float(value)
        except ValueError:
            raise Malformed("text") from None
        return _amount(Numeral(value))
    return _amount(value)


def _whole(value: Any) -> int | None:
    if value is None:
        return None
    if not isinstance(value, Numeral):
        raise Malformed("whole")
    if math.isnan(float(value)) or float(value) in (-1, -2):
        return None
    number = Fraction(value)
    if number.denominator != 1 or not 0 <= number < 2**63:
        raise Malformed("whole")
    return int(number)


def _stamp(value: Any) -> int | None:
    if value is None:
        return None
    if not isinstance(value, Numeral):
        raise Malformed("stamp")
    if value == "NaN" or float(value) in (-1, -2):
        return None
    number = Fraction(value)
    if number.denominator != 1 or number < 0:
        raise Malformed("stamp")
    return int(number)


def _status(value: Any) -> int | None:
    if value is None:
        return None
    if not isinstance(value, Numeral):
        raise Malformed("status")
    if value == "NaN" or float(value) in (-1, -2):
        return None
    if math.isinf(float(value)) or Fraction(value).denominator != 1:
        raise Malformed("status")
    return int(Fraction(value))


def _half_up(number: float | None, factor: int) -> int | None:
    return None if number is None else math.floor(number * factor + 0.5)


@dataclass
class Step:
    name: str
    site: str
    failed: bool
    eras: list[str]
    events: int | None
    numbers: dict[str, Any]


@dataclass
class Report:
    line: bytes
    key: tuple[str, ...]
    stamp: int | None
    task: str | None
    type: str | None
    state: str | None
    host: str
    steps: list[Step]

    @property
    def rank(self) -> tuple[int, bytes]:
        return len(self.line), self.line


def _step(members: Any) -> Step:
    def performance(value: Any) -> dict[str, Any]:
        parts = (
            {name: _get(value, name, part) or {} for name, part in _PARTS.items()}
            if value is not None
            else {}
        )
        return {name: number for part in parts.values() for name, number in part.items()}

    def of_outputs(value: Any) -> list[tuple[str | None, int | None, str | None]]:
        return [
            (
                _get(item, "acquisitionEra", _text),
                _get(item, "events", _whole),
                _get(item, "outputDataset", _only_text),
            )
            for item in _objects(value)
        ]

    outputs = _get(members, "output", of_outputs) or []
    by_dataset: dict[str | None, int] = {}
    for _, events, dataset in outputs:
        if events is not None:
            by_dataset[dataset] = by_dataset.get(dataset, 0) + events
    return Step(
        _get(members, "name", _text) or "",
        site_of(_get(members, "site", _only_text)),
        _get(members, "status", _status) not in (None, 0),
        [era for era, _, _ in outputs if era],
        max(by_dataset.values(), default=None),
        _get(members, "performance", performance) or {},
    )


def _part(kinds: dict[str, Callable[[Any], Any]]) -> Callable[[Any], dict[str, Any]]:
    return lambda value: (
        {} if value is None else {name: _get(value, name, kind) for name, kind in kinds.items()}
    )


_PARTS = {
    "cpu": _part(
        {
            "NumberOfStreams": _whole,
            "NumberOfThreads": _whole,
            "TotalJobCPU": _amount,
            "TotalJobTime": _amount,
        }
    ),
    "storage": _part(
        {
            "readTotalMB": _amount,
            "writeTotalMB": _amount,
            "readTotalSecs": _amount_text,
            "writeTotalSecs": _amount_text,
        }
    ),
    "memory": _part({"PeakValueRss": _amount, "PeakValueVsize": _amount}),
}


def read(line: bytes) -> Report:
    """The report of a line. Raises Malformed."""
    top = _parse(line)
    for name, value in top:
        if name == "metadata":
            _object(value)
    found: Report | None = None
    for name, data in top:
        if name == "data":
            found = _report(data, line)
    if found is None:
        raise Malformed("no data")
    return found


def _report(data: Any, line: bytes) -> Report:
    if not isinstance(data, Members):
        raise Malformed("data")
    wmaid = _get(data, "wmaid", _text)
    if not wmaid:
        raise Malformed("wmaid")

    def meta(value: Any) -> tuple[str | None, ...]:
        _object(value)
        names = tuple(_get(value, name, _text) for name in ("jobtype", "jobstate", "host"))
        return (*names, _get(value, "fwjr_id", _only_text))

    kind, state, host, number = _get(data, "meta_data", meta) or (None, None, None, None)
    task = _get(data, "task", _text)
    steps = (
        _get(
            data,
            "steps",
            lambda value: [_step(item) for item in _objects(value) if item is not None],
        )
        or []
    )
    return Report(
        line,
        (host, number, task) if host and number and task else (wmaid,),
        _get(data, "wmats", _stamp),
        task,
        kind,
        state,
        host or "unknown",
        steps,
    )


@dataclass
class ReportDay:
    """What became of a day's reports, and its rows by key."""

    bins: Counter[str] = field(default_factory=Counter)
    steps: dict[tuple[str | None, ...], dict[str, Any]] = field(default_factory=dict)
    agents: dict[tuple[str, ...], dict[str, int]] = field(default_factory=dict)


def count(lines: Iterable[bytes], day: date, before: Iterable[bytes]) -> ReportDay:
    """Rules 56 to 58 over a day's lines; ``before``: those of the day before."""
    result = ReportDay()
    earlier = {report.key for line in before if (report := _or_none(line)) is not None}
    counting: dict[tuple[str, ...], list[Report]] = {}
    agents: dict[str, dict[tuple[str, ...], Report]] = {}
    for line in lines:
        result.bins["read"] += 1
        report = _or_none(line)
        if report is None:
            result.bins["malformed"] += 1
            continue
        if report.stamp is not None and day_named(report.stamp) != day.isoformat():
            result.bins["out_of_day"] += 1
            continue
        of_host = agents.setdefault(report.host, {})
        of_host[report.key] = max(
            of_host.get(report.key, report), report, key=lambda entry: entry.rank
        )
        if report.state != "success":
            result.bins["failed"] += 1
        elif report.type not in TYPES or report.task is None:
            result.bins["other_type"] += 1
        else:
            counting.setdefault(report.key, []).append(report)
    for identity, same in counting.items():
        is_new = identity not in earlier
        result.bins["repeated"] += len(same) - is_new
        if is_new:
            _add(result, max(same, key=lambda entry: entry.rank))
    for host, reports in agents.items():
        result.agents[host,] = {
            "report_count": len(reports),
            "failed_count": sum(report.state != "success" for report in reports.values()),
            "step_sum": sum(len(report.steps) for report in reports.values()),
            "site_count": len(
                {step.site for report in reports.values() for step in report.steps} - {"unknown"}
            ),
        }
    return result


def _or_none(line: bytes) -> Report | None:
    try:
        return read(line)
    except Malformed:
        return None


def _add(result: ReportDay, report: Report) -> None:
    steps = [step for step in report.steps if step.name.lower().startswith("cmsrun")]
    result.bins["matched" if steps else "no_cmsrun"] += 1
    assert report.task is not None
    request = (
        report.task.split("/")[1] if report.task.startswith("/") else report.task.split("/")[0]
    )
    groups: dict[tuple[str | None, ...], list[Step]] = {}
    for step in steps:
        key = (
            report.task,
            request,
            step.name,
            report.type,
            step.site,
            min(step.eras, default=None),
        )
        groups.setdefault(key, []).append(step)
    for key, of_key in groups.items():
        result.steps.setdefault(key, {}).setdefault("steps", []).extend(of_key)


def step_rows(result: ReportDay) -> dict[tuple[str | None, ...], dict[str, Any]]:
    """The rows of ``step_efficiency`` by key."""
    return {key: _row(values["steps"]) for key, values in result.steps.items()}


def _row(steps: list[Step]) -> dict[str, Any]:
    def values(name: str, factor: int) -> list[int]:
        scaled = (_half_up(step.numbers.get(name), factor) for step in steps)
        return [value for value in scaled if value is not None]

    def total(numbers: list[int]) -> int | None:
        return sum(numbers) if numbers else None

    def times(name: str) -> list[int | None]:
        """Milliseconds of reads or writes, None for those that cannot be."""
        found = []
        for step in steps:
            value = _half_up(step.numbers.get(name), 1000)
            job = _half_up(step.numbers.get("TotalJobTime"), 1000)
            threads = max(1, step.numbers.get("NumberOfThreads") or 0)
            if value is not None:
                found.append(None if job is not None and value > 10 * job * threads else value)
        return found

    read, written = times("readTotalSecs"), times("writeTotalSecs")
    names = ("TotalJobTime", "NumberOfThreads", "TotalJobCPU")
    threaded = [
        step.numbers for step in steps if all(step.numbers.get(name) is not None for name in names)
    ]
    rss = [
        step.numbers["PeakValueRss"]
        for step in steps
        if step.numbers.get("PeakValueRss") is not None
    ]
    vsize = [
        step.numbers["PeakValueVsize"]
        for step in steps
        if step.numbers.get("PeakValueVsize") is not None
    ]
    return {
        "step_count": len(steps),
        "threads_sum": sum(step.numbers.get("NumberOfThreads") or 0 for step in steps),
        "streams_sum": sum(step.numbers.get("NumberOfStreams") or 0 for step in steps),
        "cpu_ms": total(values("TotalJobCPU", 1000)),
        "job_ms": total(values("TotalJobTime", 1000)),
        "thread_ms": total(
            [
                math.floor(one["TotalJobTime"] * one["NumberOfThreads"] * 1000 + 0.5)
                for one in threaded
            ]
        ),
        "cpu_of_thread_ms": total(
            [math.floor(one["TotalJobCPU"] * 1000 + 0.5) for one in threaded]
        ),
        "read_bytes": total(values("readTotalMB", 1024 * 1024)),
        "write_bytes": total(values("writeTotalMB", 1024 * 1024)),
        "read_ms": total([value for value in read if value is not None]),
        "write_ms": total([value for value in written if value is not None]),
        "rss_sum_mb": float(sum(map(Fraction, rss), Fraction())) if rss else None,
        "rss_max_mb": max(rss, default=None),
        "rss_count": len(rss),
        "vsize_max_mb": max(vsize, default=None),
        "failed_step_count": sum(step.failed for step in steps),
        "events": total([step.events for step in steps if step.events is not None]),
        "implausible_count": (read + written).count(None),
    }
