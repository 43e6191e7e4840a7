"""Command lines of CMSSpark's jobs on what jobs cost, and of its C-RSG plots: the lines
that do their work here.

Such a line reads a range of days and draws pages, which here are a run for each day, a
run for their period, and views of the stored tables. So it is answered with these
lines, all of them, instead of being run.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping, Sequence
from datetime import date, timedelta
from pathlib import Path
from typing import Final

from cmsspark.base import dates, efficiency, periods
from cmsspark.base.errors import UsageError

#: Options of these scripts that take no value.
_FLAGS: Final = (
    "--generate_plots",
    "--generate_csv",
    "--iterative",
    "--verbose",
    "--no-log4j",
    "--yes-log4j",
    "--yarn",
)
#: Options that ask for nothing here → the reason.
_NEEDLESS: Final[Mapping[str, str]] = {
    "--generate_plots": "the dashboard draws the stored tables",
    "--url_prefix": "pages are served by cmsspark dashboard, which has short addresses",
    "--html_template": "pages are served by cmsspark dashboard",
    "--iterative": "each day is stored once, and periods are made of stored days",
    "--es_host": "cmsspark publish sends documents where its settings say",
    "--es_secret_file": "cmsspark publish has its own credentials",
    "--es_index": "cmsspark publish names the index",
    "--generate_csv": "cmsspark sql --csv prints any table",
    "--attributes": "etc/crsg.yaml has the selections",
}
_PERIODS: Final = {"month": "month", "weekofyear": "week"}
_STORES: Final = ("--output_folder", "--output_dir", "--hdfs_out_dir", "--outputDir")
_Options = dict[str, str]


def check(argv: Sequence[str]) -> None:
    """Raise UsageError (2) with the lines to type, where ``argv`` starts such a script
    and there is no such file.
    """
    for position, word in enumerate(argv):
        if word.endswith(".py") or not word.startswith("-"):
            plain = Path(word).stem
            if plain in _LINES and not Path(word).is_file():
                raise _answer(plain, argv[position + 1 :])
            return


def _answer(name: str, argv: Sequence[str]) -> UsageError:
    options = _options(name, argv)
    notes = [
        f"{option} is not needed: {_NEEDLESS[option]}" for option in options if option in _NEEDLESS
    ]
    return UsageError(
        f"{name}.py is several lines here, each with a result of its own",
        found="; ".join(notes) or None,
        next_step="\n        ".join(_LINES[name](options)),
    )


def _options(name: str, argv: Sequence[str]) -> _Options:
    """Return the options of a line, by name."""
    options: _Options = {}
    words = list(argv)
    while words:
        option, equals, value = words.pop(0).partition("=")
        if not option.startswith("-") or option in _FLAGS:
            options[option] = value
            continue
        if not equals and not words:
            raise UsageError(f"{option} of {name}.py needs a value")
        options[option] = value if equals else words.pop(0)
    return options


def _range(options: _Options) -> tuple[date, date]:
    """Return the first and the last day. CMSSpark's end is not included; without dates
    the days end yesterday.
    """
    yesterday = dates.today() - timedelta(days=1)
    end = _day(options["--end_date"]) - timedelta(days=1) if "--end_date" in options else yesterday
    if "--start_date" in options:
        first = _day(options["--start_date"])
    else:
        count = options.get("--last_n_days") or options.get("--iterative_ndays_ago") or "30"
        if not count.isdigit() or not int(count):
            raise UsageError("--last_n_days must be 1 or more", found=repr(count))
        first = end - timedelta(days=int(count) - 1)
    if first > end:
        raise UsageError("--start_date is before --end_date", found=f"{first} to {end}")
    return first, end


def _day(text: str) -> date:
    return dates.parse_day(text, latest=date.max)


def _store(options: _Options) -> str:
    return next((options[name] for name in _STORES if name in options), "OUT")


def _runs(job: str, options: _Options) -> list[str]:
    """Return the line of the days, and those of their periods."""
    first, last = _range(options)
    fout = ["--fout", _store(options)]
    lines = [shlex.join(["run_spark", job, "--date", f"{first:%Y%m%d}..{last:%Y%m%d}", *fout])]
    kind = _PERIODS.get(options.get("--by", ""))
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


def _sql(query: str, options: _Options) -> str:
    return shlex.join(["cmsspark", "sql", query, "--fout", _store(options)])


def _condor_efficiency(options: _Options) -> list[str]:
    first, last = _range(options)
    kind = options.get("--cms_type")
    # CMSSpark's outliers are 0 or 1; without the option both count.
    outcomes = {"0": "'ok'", "1": "'outlier'"}.get(
        options.get("--cpu_eff_outlier", ""), "'ok', 'outlier'"
    )
    types = f"'{_quoted(kind.lower())}'" if kind else "'analysis', 'production', 'tier0', 'test'"
    above, below = efficiency.CPU
    query = (
        # The text is printed, not run.
        f'select workflow, 100 * sum({above}) / sum({below}) as "CpuEfficiency",'  # noqa: S608
        " (sum(core_with_cpu_ms) - sum(cpu_ms)) / 3600000 as"
        f" \"WastedCpuTimeHr\" from job_efficiency where day between '{first}' and '{last}' and outcome in ({outcomes})"
        f" and type in ({types}) group by 1 order by 3 desc"
    )
    return [*_runs("job_efficiency", options), _sql(query, options)]


def _hpc(options: _Options) -> list[str]:
    query = (
        "select period, hpc, sum(core_ms) / 3600000 as core_hours from period_core_hours where hpc is not null"
        " group by all order by all"
    )
    return [*_runs("job_efficiency", {"--by": "month", **options}), _sql(query, options)]


def _hs06(options: _Options) -> list[str]:
    include, exclude = options.get("--include_re"), options.get("--exclude_re")
    conditions = [f"regexp_full_match(site, '{_quoted(include)}')"] if include else []
    conditions += [f"not regexp_full_match(site, '{_quoted(exclude)}')"] if exclude else []
    where = f" where {' and '.join(conditions)}" if conditions else ""
    query = (
        "select period, site, sum(hs06_cpu_ms) / 3600000 as hs06_hours, sum(core_ms) / 3600000 as core_hours"  # noqa: S608
        f" from period_core_hours{where} group by all order by all"
    )
    return [*_runs("job_efficiency", {"--by": "month", **options}), _sql(query, options)]


def _steps(options: _Options) -> list[str]:
    first, last = _range(options)
    query = (
        "select task, step, sum(cpu_of_thread_ms) / sum(thread_ms) as cpu_efficiency from step_efficiency"  # noqa: S608
        f" where day between '{first}' and '{last}' group by all order by all"
    )
    return [*_runs("step_efficiency", options), _sql(query, options)]


def _agents(options: _Options) -> list[str]:
    first, last = _range(options)
    day = f"{first:%Y%m%d}..{last:%Y%m%d}"
    return [
        shlex.join(["run_spark", "step_efficiency", "--date", day, "--fout", _store(options)]),
        shlex.join(
            [
                "run_spark",
                "cern_monit",
                "--job",
                "step_efficiency",
                "--date",
                day,
                "--fout",
                _store(options),
            ]
        ),
    ]


def _crsg(options: _Options) -> list[str]:
    # The name of the pictures stands at the end of the folder: out/F9.
    folder = _store(options).rpartition("/")[0] or "OUT"
    chosen = [
        f"{option}={options[option]}"
        for option in ("--tiers", "--skims", "--remove")
        if option in options
    ]
    job = "crsg_event_counts"
    count = ["run_spark", job, "--date", "yesterday", "--fout", folder, *chosen]
    draw = ["cmsspark", "report", "--date", "yesterday", "--fout", folder, "--pictures", folder]
    draw += ["--picture", "event_counts"]
    if "--start_month" in options:
        draw += ["--since", options["--start_month"].replace("/", "-")]
    if options.get("--output_format") in ("png", "svg", "pdf"):
        draw += ["--format", options["--output_format"]]
    return [shlex.join(count), shlex.join(draw)]


def _quoted(text: str) -> str:
    return text.replace("'", "''")


_LINES: Final[Mapping[str, Callable[[_Options], list[str]]]] = {
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
