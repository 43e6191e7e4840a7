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

import msgspec

from cmsspark.base import dates
from cmsspark.base.errors import UsageError
from cmsspark.base.text.spelling import suggestion
from cmsspark.cli.options import DaysType
from cmsspark.store.own_jobs import JOBS, Job, find_job
from cmsspark.submit.arguments import Signature
from cmsspark.submit.cmsspark_lines import COST_LINES, OLD_OPTIONS, quoted, span, translate
from cmsspark.submit.old_scripts import OldLine, is_day, plain_name, read
from cmsspark.submit.shell_scripts import SHELL_WITHOUT_SUCCESSOR, shell_name, started

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
    "rucio_all_detailed_datasets": (
        "dataset_rses",
        "datasets at storage elements",
    ),
    "rucio_daily": ("rucio_daily", ""),
    "rucio_datasets_daily_stats": (
        "dataset_rses",
        "datasets at storage elements",
    ),
    "rucio_datasets_last_access_ts": ("dataset_last_access", ""),
    "rucio_datasets_monitoring": (
        "dataset_rses",
        "the view cmsspark_rucio_datasets has the old names of its columns",
    ),
    "rucio_datasets_stats": (
        "dataset_rses",
        "what is locked, complete, a last copy, deletable",
    ),
    "rucio_ds_mongo": (
        "dataset_rses",
        "datasets at storage elements",
    ),
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


class ScriptNotIncluded(UsageError):
    """A line names a script of CMSSpark that is not a job here (2)."""

    def __init__(self, script: str) -> None:
        super().__init__(f"{PurePosixPath(script).name} of CMSSpark is not a job here")
        self.script = script


def is_script(name: str) -> bool:
    """Return whether CMSSpark has a script of that name, or path, which is not a job here."""
    plain = plain_name(name)
    if plain in SUCCESSORS or plain in NO_SUCCESSOR or plain in _LINES:
        return True
    return is_shell_script(name)


def is_shell_script(name: str) -> bool:
    """Return whether CMSSpark has a shell script of that name, or path."""
    is_python = name.endswith(".py") or plain_name(name) in SUCCESSORS
    return not is_python and shell_name(name) is not None


def answer(
    script: str,
    words: Sequence[str],
    load_signature: Callable[[str], Signature | None],
    has_root: Callable[[], bool],
    parse: Callable[[Sequence[str]], object],
) -> UsageError:
    """Return the error that has the lines to type for ``script`` with ``words`` around it.

    ``parse`` parses a new line as our commands do, before it is printed; where a value
    of the old line is wrong, its error is the answer.
    """
    shown, plain = PurePosixPath(script).name, plain_name(script)
    notes: list[str] = []
    refused: list[str] = []
    if is_shell_script(script):
        name = shell_name(script) or plain
        if name in SHELL_WITHOUT_SUCCESSOR:
            return UsageError(
                f"no command here replaces {shown}; run CMSSpark's own script",
                next_step=f"docs/migration.md has all scripts; {script} runs from its checkout",
            )
        shell = started(name, words)
        starts, notes, refused = shell.lines, shell.notes, shell.refused
    else:
        starts = [(plain, list(words))]
        if not shown.endswith(".py"):
            shown = f"{shown}.py"
    if plain in NO_SUCCESSOR:
        path = script if "/" in script else f"/path/to/CMSSpark/src/python/CMSSpark/{plain}.py"
        return UsageError(
            f"no job here replaces {shown}; run CMSSpark's own script:",
            next_step=shlex.join(["run_spark", path, *words]),
        )
    answers = [_answer(*start, load_signature, has_root) for start in starts]
    lines = list(dict.fromkeys(line for part in answers for line in part.lines))
    typed = [shlex.split(new_line) for new_line in lines]
    for new_words in typed:
        parse(new_words)
    refused += [text for part in answers for text in part.line.refused]
    about = [f"not supported: {text}" for text in dict.fromkeys(refused)]
    about += [part.about for part in answers if part.about]
    about += [*notes, *(note for part in answers for note in part.line.notes)]
    for word in (word for part in answers for word in part.line.wrapper if word.startswith("-")):
        if not any(word in new_words for new_words in typed):
            about.append(f"{word} is not needed: nothing is started on a cluster here")
    replaced = "these commands" if len(lines) > 1 else answers[0].name
    return UsageError(
        f"{shown} is replaced by {replaced}. Type:",
        found="\n         ".join(dict.fromkeys(about)) or None,
        next_step="\n        ".join(lines),
    )


class _Answer(msgspec.Struct):
    """What replaces one line of a Python script: the name of the job or command, the
    lines to type and a word on it.
    """

    name: str
    line: OldLine
    lines: list[str]
    about: str


def _answer(
    plain: str,
    words: Sequence[str],
    load_signature: Callable[[str], Signature | None],
    has_root: Callable[[], bool],
) -> _Answer:
    name, note = SUCCESSORS.get(plain, (plain, ""))
    signature = (load_signature(name) or {}) if name in JOBS else {}
    is_of_job = plain not in COST_LINES and plain not in _LINES and name in JOBS
    line = read(plain, words, [*signature, *OLD_OPTIONS] if is_of_job else ())
    if plain == "cmsspark daily":
        name, lines = plain, _daily_lines(line)
    elif plain in COST_LINES:
        lines = COST_LINES[plain](line)
    elif plain in _LINES:
        name, lines = _LINES[plain](line)
    elif plain in DUMP_QUERIES:
        lines = _dump_query_lines(plain, line)
    else:
        _take_days(line)
        lines = _job_lines(JOBS[find_job(name).name], line, signature, has_root)
    if line.positional:
        line.refused.append(f"{' '.join(line.positional)}: a line here has no such word")
    about = f"{name} has {note}" if note and name == "cmsspark sql --dumps" else note
    return _Answer(name, line, lines, about)


def _job_lines(
    job: Job, line: OldLine, signature: Signature, has_root: Callable[[], bool]
) -> list[str]:
    """Return the line of ``job`` with the options of the old one, and those after it."""
    words = line.words
    folders = (*_FOLDERS, "--hdir") if job.name == "cern_monit" else _FOLDERS
    if "--fout" in signature and not any(word.partition("=")[0] in folders for word in words):
        words = [*words, "--fout", "DIR"]
    try:
        translation = translate([job.name, *words], job, signature, has_root)
    except UsageError as error:
        if not error.next_step or not error.next_step.startswith("run_spark"):
            raise
        line.notes.append(str(error.found or error.problem))
        return error.next_step.split("\n        ")
    if translation.default_day is not None:
        today = "; CMSSpark takes today's dump" if line.script in _OF_TODAY else ""
        line.notes.append(f"without --date it is yesterday{today}")
    line.notes += translation.notes
    return [shlex.join(["run_spark", *translation.argv])]


def _take_days(line: OldLine) -> None:
    """Take one or two days without an option, as shell scripts have them, as --date."""
    days = [word for word in line.positional if is_day(word)]
    if days and days == line.positional and len(days) < 3 and "--date" not in line.options:
        line.words += ["--date", "..".join(days)]
        line.positional = []


_FOLDERS: Final = (
    *("--fout", "--output", "--output_folder", "--output_dir", "--hdfs_out_dir"),
    "--base_eos_dir",
)
#: Scripts whose day is today where a line names none.
_OF_TODAY: Final = ("rucio_datasets_stats", "rucio_datasets_daily_stats", "rucio_daily")


def _dump_query_lines(plain: str, line: OldLine) -> list[str]:
    day, fout = line.options.get("--date") or "today", line.options.get("--fout")
    if fout:
        line.notes.append(
            "--fout is not needed: the rows are printed; --out FILE.csv writes them to a file"
        )
    instance = line.options.get("--inst", "global")
    if instance.lower() != "global":
        line.refused.append(
            f"--inst {instance}: name its folder in the settings: sources: {{dbs: …}}"
        )
    return [shlex.join(["cmsspark", "sql", "--dumps", day, DUMP_QUERIES[plain]])]


def _daily_lines(line: OldLine) -> list[str]:
    chosen = [
        word
        for old, new in (("--date", "--date"), ("--fout", "--fout"), ("--output", "--fout"))
        if old in line.options
        for word in (new, line.options[old])
    ]
    line.notes.append(
        "it waits for all streams, counts and publishes; etc/crontab has the line for cron"
    )
    return [shlex.join(["cmsspark", "daily", *chosen])]


def _range(line: OldLine) -> tuple[date, date]:
    """Return the first and the last day; CMSSpark does not include --end_date."""
    options = line.options
    end = (
        dates.parse_day(options["--end_date"], latest=date.max)
        if "--end_date" in options
        else dates.today()
    )
    last = end - timedelta(days=1)
    first = (
        dates.parse_day(options["--start_date"], latest=date.max)
        if "--start_date" in options
        else last - timedelta(days=30)
    )
    if first > last:
        raise UsageError(
            "--start_date is not before --end_date, which CMSSpark does not include",
            found=f"{first} and {end}",
            next_step="swap the days",
        )
    missing = [name for name in ("--start_date", "--end_date") if name not in options]
    if missing:
        line.note_difference(
            f"without {' and '.join(missing)}, which CMSSpark needs: {first} to {last}"
        )
    return first, last


def _crab(job: str, line: OldLine) -> tuple[str, list[str]]:
    first, last = _range(line)
    folder = line.options.get("--output_folder") or line.options.get("--output") or "DIR"
    fout = ["--fout", folder]
    if job == "crab_users":
        _choose_all_sites(line)
    if job == "crab_users" and not any("_re " in text for text in (*line.refused, *line.notes)):
        line.notes.append(
            "crab_users counts people at all sites; CMSSpark's default is T2 sites without CERN"
        )
    lines = [
        ["run_spark", "dbs_condor", "--date", span(first, last), *fout, *line.wrapper],
        ["run_spark", job, "--from", first.isoformat(), "--to", last.isoformat(), *fout],
    ]
    line.notes.append(f"{job} is made of stored days of dbs_condor, or of data_aggregation")
    return job, [shlex.join(words) for words in lines]


def _choose_all_sites(line: OldLine) -> None:
    """Take patterns that choose all sites as not needed, and refuse all others."""
    everything = {"--include_re": (".*", "^.*$", ""), "--exclude_re": ("^$", "")}
    for name, texts in everything.items():
        value = line.options.get(name)
        if value in texts:
            line.notes.append(f"{name} {value} is not needed: people at all sites are counted")
        elif value is not None:
            line.refused.append(
                f"{name} {value}: crab_users counts people at all sites; who ran at two sites is "
                "one person, so no sites can be chosen afterwards"
            )


def _eos(line: OldLine) -> tuple[str, list[str]]:
    options = line.options
    command = next(
        (word.replace("_", "-") for word in line.positional if not word[:1].isdigit()), ""
    )
    numbers = [word for word in line.positional if word[:1].isdigit()]
    line.positional = []
    store = options.get("--parquet_location") or options.get("--output") or _EOS_STORE
    out = (options.get("--outputDir") or ".").rstrip("/")
    if command == "get-filenames-per-day":
        raise UsageError(
            "no command here replaces dbs_hdfs_eos.py get-filenames-per-day: accesses are stored by "
            "dataset, not by file",
            next_step="run CMSSpark's own script: run_spark /path/to/CMSSpark/src/python/CMSSpark/"
            "dbs_hdfs_eos.py get-filenames-per-day …",
        )
    if command == "run-report-totals" or "--period" in options:
        values = options.get("--period", "").split() or numbers[-2:]
        if len(values) != 2:
            raise UsageError(
                "--period of dbs_hdfs_eos.py needs 2 values", found=" ".join(values) or "none"
            )
        first, last = (dates.parse_day(text, latest=date.max) for text in values)
        if "--appfilter" in options:
            line.refused.append("--appfilter: add a condition on the column app to the query")
        line.notes.append(
            "written bytes and times are not counted; CMSSpark leaves out users named cms…"
        )
        query = (
            "select dataset_name, app, sum(accesses) as accesses, sum(read_bytes) as read_bytes from dbs_eos"  # noqa: S608 -- printed, not run
            f" where day between '{first}' and '{last}' group by all order by read_bytes desc"
        )
        return "cmsspark sql", [
            _sql(query, store, out if out.endswith(".csv") else f"{out}/dataset_totals.csv")
        ]
    if command not in ("", "run-update"):
        hint = suggestion(command, ("run-update", "run-report-totals", "get-filenames-per-day"))
        raise UsageError(f"dbs_hdfs_eos.py has no command {command!r}", found=hint or None)
    mode = options.get("--mode")
    if mode not in (None, "append", "overwrite", "fail"):
        raise UsageError("--mode must be append, overwrite or fail", found=repr(mode))
    if mode == "fail":
        line.refused.append("--mode fail: a day that is stored again replaces itself")
    elif mode:
        line.notes.append(
            f"--mode {mode} is not needed: a day that is stored again replaces itself"
        )
    text = options.get("--date") or next(iter(reversed(numbers)), "yesterday")
    day = _as_date_option(text)
    return "dbs_eos", [
        shlex.join(["run_spark", "dbs_eos", "--date", day, "--fout", store, *line.wrapper])
    ]


def _as_date_option(text: str) -> str:
    """Return ``2026/01/*``, ``2026/*`` or a day as --date takes it. Raises UsageError (2)
    for other patterns.
    """
    match = re.fullmatch(r"(\d{4})/(?:(\d\d)/)?\*(?:/\*)?", text)
    if match is None:
        if re.search(r"[*?\[\]{}]", text):
            raise UsageError(
                "a pattern of days has the form 2026/01/* or 2026/*",
                found=repr(text),
                next_step="give the days: run_spark dbs_eos --date 20260101..20260131",
            )
        return text.replace("/", "")
    year, month = int(match[1]), int(match[2] or 0)
    if month > 12:
        raise UsageError("there is no such month", found=repr(text))
    first, last = (
        date(year, month or 1, 1),
        date(year, month or 12, calendar.monthrange(year, month or 12)[1]),
    )
    # A pattern chooses the folders that are there.
    last = max(first, min(last, dates.today() - timedelta(days=1)))
    return span(first, last)


def _sql(query: str, store: str, out: str) -> str:
    """Return the line of a query, which has single quotes, for a shell."""
    return f"cmsspark sql {quoted(query)} {shlex.join(['--fout', store, '--out', out])}"


def _merge_phedex(line: OldLine) -> tuple[str, list[str]]:
    options = line.options
    chosen = DaysType.parse(options.get("--dates") or "yesterday")
    query = (
        f"select * from phedex where day between '{min(chosen)}' and '{max(chosen)}' order by day"  # noqa: S608 -- printed, not run
    )
    store, out = options.get("--idir") or "DIR", options.get("--fout") or "phedex.csv"
    line.notes.append("the days that run_spark phedex stored are one table")
    return "cmsspark sql", [_sql(query, store, out)]


def _dates(line: OldLine) -> tuple[str, list[str]]:
    options = line.options
    last = dates.parse_day(options["--start"]) if options.get("--start") else dates.today()
    count = options.get("--ndays") or "30"
    if not count.isdigit() or not int(count):
        raise UsageError("--ndays must be 1 or more", found=repr(count))
    first = last - timedelta(days=int(count) - 1)
    return "--date of each job on logs and dumps", [
        shlex.join(["run_spark", "JOB", "--date", span(first, last)])
    ]


#: Scripts whose lines are not those of one job with the same options.
_LINES: Final[Mapping[str, Callable[[OldLine], tuple[str, list[str]]]]] = {
    "condor_crab_unique_users": lambda line: _crab("crab_users", line),
    "dbs_hdfs_crab": lambda line: _crab("crab_popularity", line),
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
