"""Lines on what jobs cost and of the C-RSG plots: the lines that do their work here.

Such a line of CMSSpark reads a range of days and draws pages, which here are a run for
each day, a run for their period, and views of the stored tables.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping
from datetime import date, timedelta
from typing import Final

from cmsspark.base import dates, efficiency, periods
from cmsspark.base.errors import UsageError
from cmsspark.submit.old_scripts import SCRIPTS, OldLine

_PERIODS: Final = {"month": "month", "weekofyear": "week"}
_STORES: Final = ("--output_folder", "--output_dir", "--hdfs_out_dir", "--output")
#: What CMSSpark's scripts take where a line does not say it.
_TYPE, _OUTLIER = "production", "0"
_SITES, _NO_SITES = "^T2_.*$", ".*_CERN.*"
#: Days that a script reads where a line names no dates.
_LAST_DAYS: Final[Mapping[str, int]] = {"stepchain_cpu_eff": 15}


def _range(line: OldLine) -> tuple[date, date]:
    """Return the first and the last day, as the script chooses them. CMSSpark's end is
    not included.
    """
    options, yesterday = line.options, dates.today() - timedelta(days=1)
    if "--iterative" in options:
        return _iterative_range(line)
    count = _count(line, "--last_n_days", _LAST_DAYS.get(line.script, 30))
    first: date | None = _day(options["--start_date"]) if "--start_date" in options else None
    end: date | None = _day(options["--end_date"]) if "--end_date" in options else None
    if first is not None and end is not None:
        if "--last_n_days" in options:
            line.note_difference("--last_n_days is not needed: the line has both dates")
    elif end is not None:
        first = end - timedelta(days=count)
    elif first is not None:
        end = max(min(first + timedelta(days=count), yesterday), first + timedelta(days=1))
    else:
        first, end = yesterday - timedelta(days=count), yesterday
    assert end is not None
    missing = [name for name in ("--start_date", "--end_date") if name not in options]
    if missing and "--last_n_days" in SCRIPTS[line.script]:
        line.note_difference(
            f"the days are {first} to {end - timedelta(days=1)}, as CMSSpark chooses them today"
        )
    elif missing:
        line.note_difference(
            f"without {' and '.join(missing)}, which CMSSpark needs: {first} to "
            f"{end - timedelta(days=1)}"
        )
    if first >= end:
        raise UsageError(
            "--start_date is not before --end_date, which CMSSpark does not include",
            found=f"{first} and {end}",
            next_step="swap the days",
        )
    return first, end - timedelta(days=1)


def _iterative_range(line: OldLine) -> tuple[date, date]:
    """Return the days that ``--iterative`` renews today: from the first of a month to
    three days ago.
    """
    count = _count(line, "--iterative_ndays_ago", 10)
    today = dates.today()
    first = (today.replace(day=1) - timedelta(days=count)).replace(day=1)
    last = today - timedelta(days=3)
    line.note_difference(
        "--iterative is not needed: each day is stored once; cmsspark daily adds new ones"
    )
    line.note_difference(f"the days are {first} to {last}, which --iterative renews today")
    return first, last


def _count(line: OldLine, name: str, default: int) -> int:
    text = line.options.get(name, str(default))
    if not text.isdigit() or not int(text):
        raise UsageError(f"{name} must be 1 or more", found=repr(text))
    return int(text)


def _day(text: str) -> date:
    return dates.parse_day(text, latest=date.max)


def _store(line: OldLine) -> str:
    return next((line.options[name] for name in _STORES if name in line.options), "DIR")


def _runs(job: str, line: OldLine, by: str = "") -> list[str]:
    """Return the line of the days, and those of their periods."""
    first, last = _range(line)
    fout = ["--fout", _store(line)]
    text = dates.compact(first) if first == last else f"{first:%Y%m%d}..{last:%Y%m%d}"
    lines = [shlex.join(["run_spark", job, "--date", text, *fout, *line.wrapper])]
    kind = _PERIODS.get(by)
    for period in _periods(kind, first, last):
        lines.append(shlex.join(["run_spark", f"{job}_period", *period, *fout]))
    return lines


def _periods(kind: str | None, first: date, last: date) -> list[list[str]]:
    """Return the options of each period of a kind, or of the whole range."""
    if kind is None:
        return [["--from", first.isoformat(), "--to", last.isoformat()]]
    every = (first + timedelta(days=number) for number in range((last - first).days + 1))
    name: Callable[[date], str] = lambda day: (  # noqa: E731
        f"{day:%Y-%m}" if kind == "month" else f"{day:%G-W%V}"
    )
    parse = periods.month if kind == "month" else periods.week
    named = [parse(text, date.max) for text in dict.fromkeys(map(name, every))]
    # Days of the first and last one may not be in the range.
    is_whole = {period: first <= period.first and period.last <= last for period in named}
    return [
        [f"--{kind}", str(period), *([] if is_whole[period] else ["--allow-missing"])]
        for period in named
    ]


def _sql(query: str, line: OldLine) -> str:
    return shlex.join(["cmsspark", "sql", query, "--fout", _store(line)])


def _condor_efficiency(line: OldLine) -> list[str]:
    lines = _runs("job_efficiency", line)
    first, last = _range(OldLine(line.script, options=line.options))
    is_web = line.script == "cpueff_condor_goweb"
    kind = line.options.get("--cms_type", "" if is_web else _TYPE)
    outlier = line.options.get("--cpu_eff_outlier", "" if is_web else _OUTLIER)
    if outlier not in ("", "0", "1"):
        raise UsageError("--cpu_eff_outlier must be 0 or 1", found=repr(outlier))
    if not is_web and "--cms_type" not in line.options:
        line.note_difference(f"the query chooses type {_TYPE}, CMSSpark's default")
    if not is_web and "--cpu_eff_outlier" not in line.options:
        line.note_difference("the query leaves outliers out, CMSSpark's default")
    # CMSSpark's outliers are 0 or 1; without the option the web pages count both.
    outcomes = {"0": "'ok'", "1": "'outlier'"}.get(outlier, "'ok', 'outlier'")
    types = f"'{_quoted(kind.lower())}'" if kind else "'analysis', 'production', 'tier0', 'test'"
    above, below = efficiency.CPU
    query = (
        # The text is printed, not run.
        f'select workflow, 100 * sum({above}) / sum({below}) as "CpuEfficiency",'  # noqa: S608
        " (sum(core_with_cpu_ms) - sum(cpu_ms)) / 3600000 as"
        f" \"WastedCpuTimeHr\" from job_efficiency where day between '{first}' and '{last}' and outcome in ({outcomes})"
        f" and type in ({types}) group by 1 order by 3 desc"
    )
    return [*lines, _sql(query, line)]


def _hpc(line: OldLine) -> list[str]:
    query = (
        "select period, hpc, sum(core_ms) / 3600000 as core_hours from period_core_hours where hpc is not null"
        " group by all order by all"
    )
    return [*_runs("job_efficiency", line, "month"), _sql(query, line)]


def _hs06(line: OldLine) -> list[str]:
    by = line.options.get("--by", "month")
    if by not in _PERIODS:
        raise UsageError(f"--by must be one of {', '.join(_PERIODS)}", found=repr(by))
    include = line.options.get("--include_re", _SITES)
    exclude = line.options.get("--exclude_re", _NO_SITES)
    defaults = [
        f"{name} {value}"
        for name, value in (("--include_re", include), ("--exclude_re", exclude))
        if name not in line.options
    ]
    if defaults:
        line.note_difference(
            f"the stored tables have all sites; the query has CMSSpark's defaults: {', '.join(defaults)}"
        )
    query = (
        "select period, site, sum(hs06_cpu_ms) / 3600000 as hs06_hours, sum(core_ms) / 3600000 as core_hours"  # noqa: S608
        f" from period_core_hours where regexp_matches(site, '{_quoted(include)}')"
        f" and not regexp_matches(site, '{_quoted(exclude)}') group by all order by all"
    )
    return [*_runs("job_efficiency", line, by), _sql(query, line)]


def _steps(line: OldLine) -> list[str]:
    lines = _runs("step_efficiency", line)
    first, last = _range(OldLine(line.script, options=line.options))
    query = (
        "select task, step, sum(cpu_of_thread_ms) / sum(thread_ms) as cpu_efficiency from step_efficiency"  # noqa: S608
        f" where day between '{first}' and '{last}' group by all order by all"
    )
    return [*lines, _sql(query, line)]


def _agents(line: OldLine) -> list[str]:
    first, last = _range(line)
    day, fout = f"{first:%Y%m%d}..{last:%Y%m%d}", ["--fout", _store(line)]
    count = ["run_spark", "step_efficiency", "--date", day, *fout, *line.wrapper]
    publish = ["run_spark", "cern_monit", "--job", "step_efficiency", "--date", day, *fout]
    return [shlex.join(count), shlex.join(publish)]


def _crsg(line: OldLine) -> list[str]:
    options = line.options
    folder = options.get("--output_folder") or options.get("--output") or "DIR"
    # The name of the pictures stands at the end of the folder: out/F9.
    store = folder.rstrip("/").rpartition("/")[0] or "DIR"
    chosen: dict[str, str] = {
        name: options[name] for name in ("--tiers", "--skims", "--remove") if name in options
    }
    if chosen:
        # A selection of one's own takes what a line does not name from CMSSpark's defaults.
        defaults = {"--tiers": _CRSG_TIERS, "--remove": _CRSG_REMOVE}
        lacking = {name: text for name, text in defaults.items() if name not in chosen}
        for name, text in lacking.items():
            line.note_difference(f"{name} has CMSSpark's default: {text}")
        chosen = {**chosen, **lacking}
    else:
        line.note_difference(
            "the selection `simulation` has CMSSpark's default --tiers and --remove"
        )
    since = options.get("--start_month", "")
    if not since:
        first = dates.months_before(dates.today().replace(day=1), 12)
        since = f"{first:%Y-%m}"
        line.note_difference(
            f"the picture begins with {since}, twelve months back, as CMSSpark chooses"
        )
    _check_month(since)
    words = [f"{name}={text}" for name, text in chosen.items()]
    words += ["--valid-files"] if "--only_valid_files" in options else []
    job = "crsg_event_counts"
    count = ["run_spark", job, "--date", "yesterday", "--fout", store, *words, *line.wrapper]
    draw = ["cmsspark", "report", "--date", "yesterday", "--fout", store, "--pictures", folder]
    draw += ["--picture", "event_counts", "--since", since.replace("/", "-")]
    kind = options.get("--output_format", "png")
    if kind in ("png", "svg", "pdf"):
        draw += ["--format", kind]
    else:
        line.refused.append(f"--output_format {kind}: pictures are PNG, SVG and PDF")
    line.note_difference("CMSSpark draws a PDF, too: --format pdf")
    return [shlex.join(count), shlex.join(draw)]


def _check_month(text: str) -> None:
    try:
        periods.month(text.replace("/", "-"), date.max)
    except UsageError as error:
        raise UsageError(
            "--start_month is no month", found=repr(text), next_step=error.next_step
        ) from None


def _quoted(text: str) -> str:
    return text.replace("'", "''")


_CRSG_TIERS: Final = (
    "GEN,GEN-SIM,GEN-RAW,GEN-SIM-RECO,AODSIM,MINIAODSIM,RAWAODSIM,NANOAODSIM,GEN-SIM-DIGI-RAW,"
    "GEN-SIM-DIGI-RECO"
)
_CRSG_REMOVE: Final = "test,backfill,jobrobot,sam,bunnies,penguins"

#: Script → what makes the lines to type.
COST_LINES: Final[Mapping[str, Callable[[OldLine], list[str]]]] = {
    "condor_cpu_efficiency": _condor_efficiency,
    "cpueff_condor_goweb": _condor_efficiency,
    "stepchain_cpu_eff": _steps,
    "cpueff_stepchain_goweb": _steps,
    "hpc_running_cores_and_corehr": _hpc,
    "hpc_at_cms": _hpc,
    "condor_hs06coreHrPlot": _hs06,
    "wma_agent_count_to_opensearch": _agents,
    "dbs_event_count_plot": _crsg,
}
