"""Answers to lines that name a script of CMSSpark: the lines to type instead, with the
options of the old one.

``docs/migration.md`` has the list of all jobs and scripts; a test compares both.
"""

from __future__ import annotations

import calendar
import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from datetime import date, timedelta
from pathlib import Path, PurePosixPath
from typing import Final

from cmsspark.base import dates
from cmsspark.base.errors import UsageError
from cmsspark.cli.options import DaysType
from cmsspark.store.job_index import JOBS, Job
from cmsspark.submit.arguments import Signature
from cmsspark.submit.cmsspark_lines import span, translate

#: Scripts of CMSSpark that are built-in jobs here: a path to one in a checkout that is
#: not there starts the job.
BUILT_IN: Final = frozenset(
    {
        "data_aggregation",
        "dbs_aaa",
        "dbs_cmssw",
        "dbs_condor",
        "dbs_eos",
        "dbs_events",
        "dbs_jm",
        "dbs_phedex",
        "phedex",
        "cern_monit",
        "cern_monit3",
        "rucio_daily",
    }
)
#: The script without ``.py`` → (a job or command of today, or several, and a word on it).
SUCCESSORS: Final[Mapping[str, tuple[str, str]]] = {
    "aggregate_campaign_tier": (
        "event_counts",
        "events and bytes by month, data tier and campaign",
    ),
    "aggregate_campaigns": ("event_counts", "events and bytes by month, data tier and campaign"),
    "aggregate_dbs": ("dbs_events", "by dataset; its column data_tier sums to tiers"),
    "aggregate_leftovers": ("leftovers", "orphan, invalid and missing datasets"),
    "aggregate_phedex": ("site_tier_usage", ""),
    "cern_monit3": ("cern_monit", ""),
    "condor_cpu_efficiency": ("job_efficiency", "CPU efficiency of HTCondor jobs"),
    "condor_crab_unique_users": ("crab_users", "distinct users of CRAB by week and month"),
    "condor_hs06coreHrPlot": ("job_efficiency", "core_hours has HS06 by site"),
    "cpueff_condor_goweb": ("job_efficiency", "and the page Efficiency of cmsspark dashboard"),
    "cpueff_stepchain_goweb": ("step_efficiency", "CPU efficiency of step chains"),
    "data_agg": ("data_aggregation", ""),
    "data_collection": ("data_aggregation", ""),
    "dbs_adler": ("cmsspark sql --dumps", "files by checksum"),
    "dbs_block_lumis": ("cmsspark sql --dumps", "lumi sections of blocks"),
    "dbs_condor": ("dbs_condor", ""),
    "dbs_event_count_plot": (
        "crsg_event_counts",
        "then cmsspark report --pictures DIR --picture event_counts",
    ),
    "dbs_hdfs_crab": ("crab_popularity", "datasets that CRAB jobs read"),
    "dbs_hdfs_eos": ("dbs_eos", "accesses on EOS by dataset"),
    "dbs_lfn": ("cmsspark sql --dumps", "files by name"),
    "dbs_spark": ("dbs_events", ""),
    "hpc_at_cms": ("job_efficiency", "core_hours by HPC"),
    "hpc_running_cores_and_corehr": ("job_efficiency", "running_cores and core_hours by HPC"),
    "jm_stats": ("dbs_crab", ""),
    "mergePhedex": (
        "phedex",
        "each day is stored; cmsspark show phedex --path prints it for pandas or DuckDB",
    ),
    "phedex_agg": ("phedex", ""),
    "rucio_all_datasets": ("dataset_last_access", ""),
    "rucio_all_detailed_datasets": ("dataset_last_access", ""),
    "rucio_daily": ("rucio_daily", ""),
    "rucio_datasets_daily_stats": ("rucio_daily", ""),
    "rucio_datasets_last_access_ts": ("dataset_last_access", ""),
    "rucio_datasets_monitoring": ("dataset_last_access", ""),
    "rucio_datasets_stats": ("rucio_daily", ""),
    "rucio_ds_mongo": ("dataset_last_access", ""),
    "rucio_ds_summary": ("dataset_last_access", ""),
    "stepchain_cpu_eff": ("step_efficiency", "CPU efficiency of step chains"),
    "wma_agent_count_to_opensearch": ("step_efficiency", "its table agent_reports"),
}
#: What ``cmsspark sql --dumps`` answers instead of a script.
DUMP_QUERIES: Final[Mapping[str, str]] = {
    "dbs_adler": "select logical_file_name, file_size from dbs.files where adler32 = '…'",
    "dbs_block_lumis": "select block_name, count(distinct (run_num, lumi_section_num)) as lumis from dbs.file_lumis"
    " join dbs.files using (file_id) join dbs.blocks using (block_id) group by 1",
    "dbs_lfn": "select logical_file_name from dbs.files where logical_file_name like '/store/data/%'",
}
#: Scripts whose work nothing here does.
NO_SUCCESSOR: Final = frozenset(
    {
        "aso_stats",
        "avro2json",
        "cmssw_avro2json",
        "data_aggregation_plots",
        "fts",
        "fts_aso",
        "getCSV",
        "hdfs_an",
        "report_builder",
        "stats",
        "visualize_campaigns",
        "visualize_leftovers",
        "visualize_tiers",
        "wmarchive",
        "wmarchive_crab_file_access",
    }
)
#: Where dbs_hdfs_eos.py keeps its table.
_EOS_STORE: Final = "hdfs:///cms/eos"
_LIBRARY: Final = "CMSSpark"

#: The lines and what is said about them.
_Lines = tuple[list[str], str]


class ScriptNotIncluded(UsageError):
    """A line names a script of CMSSpark that is not a job here (2)."""

    def __init__(self, script: str) -> None:
        super().__init__(f"CMSSpark's {PurePosixPath(script).stem}.py is not included")
        self.script = script


def is_script(name: str) -> bool:
    """Return whether CMSSpark has a script of that name, or path, which is not a job here."""
    plain = PurePosixPath(name).name.removesuffix(".py")
    return plain in SUCCESSORS or plain in NO_SUCCESSOR or plain in _LINES


def answer(
    script: str,
    words: Sequence[str],
    load_signature: Callable[[str], Signature | None],
    has_root: Callable[[], bool],
) -> UsageError:
    """Return the error that has the lines to type for ``script`` with ``words`` behind it."""
    plain = PurePosixPath(script).name.removesuffix(".py")
    name, note = SUCCESSORS.get(plain, ("", ""))
    if plain in _LINES:
        lines, about = _LINES[plain](list(words))
    elif name in JOBS:
        lines, about = _job_lines(JOBS[name], note, words, load_signature(name) or {}, has_root)
    elif plain in DUMP_QUERIES:
        day = _options(words).get("--date", "today")
        lines = [shlex.join(["cmsspark", "sql", "--dumps", day, DUMP_QUERIES[plain]])]
        about = f"{name} has {note}"
    else:
        path = script if "/" in script else f"/path/to/CMSSpark/src/python/CMSSpark/{plain}.py"
        lines = [shlex.join(["run_spark", path, *words])]
        about = "nothing here does its work; CMSSpark's own script runs from its checkout"
    return UsageError(
        f"CMSSpark's {plain}.py is not included", found=about, next_step="\n        ".join(lines)
    )


def _job_lines(
    job: Job, note: str, words: Sequence[str], signature: Signature, has_root: Callable[[], bool]
) -> _Lines:
    """Return the line of ``job`` with the options of the old one, and those after it."""
    about = [f"run_spark {job.name} does its work{f': {note}' if note else ''}"]
    if "--fout" in signature and not any(word.partition("=")[0] in _FOLDERS for word in words):
        words = [*words, "--fout", "DIR"]
    try:
        translation = translate([job.name, *words], job, signature, has_root)
    except UsageError as error:
        about.append(str(error.found or error.problem))
        return (error.next_step or "").split("\n        "), "; ".join(about)
    if translation.default_day is not None:
        about.append("without --date it is yesterday")
    return [shlex.join(["run_spark", *translation.argv])], "; ".join([*about, *translation.notes])


_FOLDERS: Final = ("--fout", "--output", "--output_folder", "--hdfs_out_dir", "--base_eos_dir")


def _options(words: Sequence[str]) -> dict[str, str]:
    """Return the values of the options among ``words``; "" of flags."""
    options: dict[str, str] = {}
    for position, word in enumerate(words):
        name, equals, value = word.partition("=")
        if name.startswith("--"):
            following = words[position + 1] if position + 1 < len(words) else "--"
            options[name] = value if equals else "" if following.startswith("--") else following
    return options


def _range(options: Mapping[str, str]) -> tuple[date, date]:
    """Return the first and the last day; CMSSpark does not include --end_date, and
    begins a month before.
    """
    end = (
        dates.parse_day(options["--end_date"], latest=date.max)
        if "--end_date" in options
        else dates.today()
    )
    last = end - timedelta(days=1)
    first = (
        dates.parse_day(options["--start_date"], latest=date.max)
        if "--start_date" in options
        else None
    )
    if first is not None and first > last:
        raise UsageError(
            "--start_date is before --end_date",
            found=f"{first} and {end}",
            next_step="swap the days",
        )
    return first or last - timedelta(days=30), last


def _crab(job: str, words: Sequence[str]) -> _Lines:
    options = _options(words)
    first, last = _range(options)
    fout = ["--fout", options.get("--output_folder") or "DIR"]
    lines = [
        ["run_spark", "dbs_condor", "--date", span(first, last), *fout],
        ["run_spark", job, "--from", first.isoformat(), "--to", last.isoformat(), *fout],
    ]
    about = f"run_spark {job} does its work, from stored days of dbs_condor or data_aggregation"
    if "--by" in options:
        about += "; --by is not needed: there is a row for each week and for each month"
    return [shlex.join(line) for line in lines], about


def _eos(words: Sequence[str]) -> _Lines:
    options = _options(words)
    if "run-report-totals" in words:
        position = next((number for number, word in enumerate(words) if word == "--period"), None)
        values = words[position + 1 : position + 3] if position is not None else words[-2:]
        first, last = (dates.parse_day(text, latest=date.max) for text in values)
        query = (
            "select dataset_name, app, sum(accesses) as accesses, sum(read_bytes) as read_bytes from dbs_eos"  # noqa: S608 -- printed, not run
            f" where day between '{first}' and '{last}' group by all order by read_bytes desc"
        )
        out = f"{(options.get('--outputDir') or '.').rstrip('/')}/dataset_totals.csv"
        return (
            [_sql(query, _EOS_STORE, out)],
            "the stored days of dbs_eos have the totals; written bytes and times are not counted",
        )
    text = options.get("--date") or next(
        (word for word in reversed(words) if re.match(r"\d{4}/", word)), "yesterday"
    )
    return (
        [
            shlex.join(
                ["run_spark", "dbs_eos", "--date", _as_date_option(text), "--fout", _EOS_STORE]
            )
        ],
        "run_spark dbs_eos does its work: accesses on EOS by dataset; a day that is stored again replaces itself",
    )


def _as_date_option(text: str) -> str:
    """Return ``2026/01/*``, ``2026/*`` or a day as --date takes it."""
    match = re.fullmatch(r"(\d{4})/(?:(\d\d)/)?\*(?:/\*)?", text)
    if match is None:
        return text.replace("/", "")
    year, month = int(match[1]), int(match[2] or 0)
    first, last = (
        date(year, month or 1, 1),
        date(year, month or 12, calendar.monthrange(year, month or 12)[1]),
    )
    return span(first, last)


def _sql(query: str, store: str, out: str) -> str:
    """Return the line of a query, which has single quotes, for a shell."""
    return f'cmsspark sql "{query}" {shlex.join(["--fout", store, "--out", out])}'


def _merge_phedex(words: Sequence[str]) -> _Lines:
    options = _options(words)
    chosen = DaysType.parse(options.get("--dates") or "yesterday")
    query = (
        f"select * from phedex where day between '{min(chosen)}' and '{max(chosen)}' order by day"  # noqa: S608 -- printed, not run
    )
    store, out = options.get("--idir") or "DIR", options.get("--fout") or "phedex.csv"
    return ([_sql(query, store, out)], "the days that run_spark phedex stored are one table")


def _dates(words: Sequence[str]) -> _Lines:
    options = _options(words)
    last = dates.parse_day(options["--start"]) if options.get("--start") else dates.today()
    first = last - timedelta(days=int(options.get("--ndays") or 30) - 1)
    return (
        [shlex.join(["run_spark", "JOB", "--date", span(first, last)])],
        "--date of every job on logs and dumps takes a range",
    )


#: Scripts whose lines are not those of one job with the same options.
_LINES: Final[Mapping[str, Callable[[Sequence[str]], _Lines]]] = {
    "condor_crab_unique_users": lambda words: _crab("crab_users", words),
    "dbs_hdfs_crab": lambda words: _crab("crab_popularity", words),
    "dbs_hdfs_eos": _eos,
    "mergePhedex": _merge_phedex,
    "dates": _dates,
}


def python_path(script: Path, environ: Mapping[str, str]) -> str | None:
    """Return PYTHONPATH with what a script of CMSSpark imports, from its checkout; None
    where it needs nothing.

    Raises UsageError (2) where the script imports CMSSpark and there is none.
    """
    try:
        text = script.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    if not re.search(rf"^\s*(from|import) {_LIBRARY}\b", text, re.MULTILINE):
        return None
    paths = [path for path in environ.get("PYTHONPATH", "").split(":") if path]
    if any(Path(path, _LIBRARY, "__init__.py").is_file() for path in paths):
        return None
    for folder in script.resolve().parents:
        for folder_path in (folder, folder / "src" / "python"):
            if Path(folder_path, _LIBRARY, "__init__.py").is_file():
                return ":".join([str(folder_path), *paths])
    raise UsageError(
        f"{script.name} imports {_LIBRARY}, which is not there",
        where=script,
        found=f"no folder {_LIBRARY} beside it or in PYTHONPATH",
        next_step=f"PYTHONPATH=/path/to/CMSSpark/src/python run_spark {shlex.quote(str(script))} …",
    )
