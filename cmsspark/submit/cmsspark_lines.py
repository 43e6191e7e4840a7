"""Command lines of CMSSpark: its options in the words of ``run_spark``, before the line is parsed.

What an option means here is in ``docs/migration.md``. An option that is not supported
is an error that names all such options of the line at once, and the new line.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from datetime import date, timedelta
from pathlib import Path, PurePosixPath
from typing import Final
from urllib.parse import urlsplit

import msgspec

from cmsspark.base import dates, efficiency, periods
from cmsspark.base.errors import UsageError
from cmsspark.base.resources import read_yaml
from cmsspark.base.text.terminal import pluralize
from cmsspark.store.own_jobs import JOBS, Job
from cmsspark.submit.arguments import Signature
from cmsspark.submit.old_scripts import SCRIPTS, OldLine

#: CMSSpark's folder of all dumps and of the streams in Avro: what ``--hdir`` of its jobs replaces.
CMS_FOLDER: Final = "/project/awg/cms"
_INSTANCES: Final = ("global", "phys01", "phys02", "phys03")
_ALL_INSTANCES: Final = "all"
#: Folders of single streams and dumps → the source.
_FOLDERS: Final[Mapping[str, str]] = {
    "--aaa_hdir": "aaa",
    "--eos_hdir": "eos",
    "--cmssw_hdir": "cmssw",
    "--jm_hdir": "crab",
    "--crab_hdir": "crab",
    "--dbs_hdir": "dbs",
    "--phedex_hdir": "phedex",
}
#: Options that make an option of today together with others, or with their value.
_PARTS: Final = (
    "--inst",
    "--hdir",
    "--tier",
    "--amq",
    "--creds",
    "--opensearch_host",
    "--start_date",
    "--end_date",
)
_DAY_AT_END: Final = re.compile(
    r"(?P<store>.+?)/+(?P<year>\d{4})/(?P<month>\d{1,2})/(?P<day>\d{1,2})/*"
)
_DBS_FOLDER: Final = re.compile(r"/CMS_DBS3_PROD_(?P<instance>\w+?)(/current)?/*$")
#: Options that ask for nothing here → the reason.
_NEEDLESS: Final[Mapping[str, str]] = {
    "--stomp": "stomp.py is a dependency of cmsspark",
    "--aggregation_schema": "every stored table has its schema",
    "--generate_plots": "the table has the numbers; cmsspark dashboard draws them",
    "--by": "there is a row for each week and for each month",
    "--amq_batch_size": "the size of batches is set in the settings (publishing)",
    "--cmsspark_git_tag": "the manifest of a run names its version",
    "--opensearch_index": "MONIT names the index of documents",
    "--opensearch_secret_file": "documents go through MONIT, with --amq",
    "--cvmfs": "the Python of run_spark runs the job; SPARK_HOME, JAVA_HOME, HADOOP_CONF_DIR and --env choose the rest",
}
#: Options that are not supported → what to do instead.
_GONE: Final[Mapping[str, str]] = {
    "--era": "filter the stored table by its column acquisition_era",
    "--release": "filter the stored table by its column release_versions",
    "--cdate": "filter the stored table by its column created_ms",
    "--action": "run site_tier_usage for sums by tier, dbs_events for each dataset",
    "--fin": "name the folder of a source with --source SOURCE.NAME=FOLDER",
}
_FLAGS: Final = ("--aggregation_schema", "--cvmfs", "--generate_plots")
#: Options that have another name here.
_RENAMED: Final[Mapping[str, str]] = {
    "--output": "--fout",
    "--output_folder": "--fout",
    "--output_dir": "--fout",
    "--hdfs_out_dir": "--fout",
    "--base_eos_dir": "--fout",
    "--fdate": "--date",
}


class Translation(msgspec.Struct):
    """A line in today's words: ``argv`` without the program's name, and notes on what
    was replaced.

    ``default_day``: the day that stands in ``argv`` because the line names none.
    """

    argv: list[str]
    notes: list[str] = msgspec.field(default_factory=list)
    default_day: date | None = None


def translate(
    argv: Sequence[str], job: Job, signature: Signature, has_root: Callable[[], bool]
) -> Translation:
    """Replace CMSSpark's options. ``signature``: today's options of the job, which
    stay; ``has_root``: whether settings or environment put a root before input folders,
    where the line does not.

    Raises UsageError (2) for options that are not supported: all of them, with the line
    to type instead.
    """
    end = argv.index("--") if "--" in argv else len(argv)
    line = _Line(job, signature, has_root)
    words = list(argv[:end])
    while words:
        word = words.pop(0)
        name, equals, value = word.partition("=")
        if name in signature or name not in OLD_OPTIONS:
            line.words.append(word)
            line.is_misspelt |= (
                name not in signature
                and re.match(r"--(d|da|dat|date.*)$", name.lower()) is not None
            )
            if signature.get(name) and not equals and words:
                line.words.append(words.pop(0))
            continue
        if not equals and name not in _FLAGS:
            if not words:
                raise UsageError(f"{name} needs a value")
            value = words.pop(0)
        while name == "--tier" and words and not words[0].startswith("-"):
            value += f",{words.pop(0)}"  # argparse's form: --tier RAW AOD
        line.replace(name, value)
    line.finish()
    return Translation([*line.words, *argv[end:]], line.notes, line.default_day)


#: All options of CMSSpark's jobs that run_spark understands.
OLD_OPTIONS: Final = (*_FOLDERS, *_NEEDLESS, *_GONE, *_RENAMED, *_PARTS)


class _Line:
    """A line while it is translated."""

    def __init__(self, job: Job, signature: Signature, has_root: Callable[[], bool]) -> None:
        self.job, self.signature, self.has_root = job, signature, has_root
        self.words: list[str] = []
        self.notes: list[str] = []
        #: (option, what to do instead) of what is not supported, and lines to type after this one.
        self.unsupported: list[tuple[str, str]] = []
        self.after: list[str] = []
        self.instance, self.cms_folder, self.amq, self.tiers = "global", "", "", ""
        #: The option that named where documents go.
        self.amq_option = "--amq"
        self.first_day: date | None = None
        self.end_day: date | None = None
        self.default_day: date | None = None
        #: Whether --date is misspelt: click refuses the line and suggests it.
        self.is_misspelt = False
        #: Whether --hdir of cern_monit names a folder without a day.
        self._names_no_day = False

    def replace(self, name: str, value: str) -> None:
        """Take an old option."""
        if name in _NEEDLESS:
            self.notes.append(f"{name} is not needed: {_NEEDLESS[name]}")
        elif name == "--hdir" and self._publishes:
            self._stored_day(value)
        elif name in ("--amq", "--creds"):
            self.amq, self.amq_option = value, name
        elif name == "--opensearch_host":
            self.amq, self.amq_option = self.amq or "amq_broker.json", name
        elif name in ("--start_date", "--end_date"):
            self._range_end(name, value)
        elif name in _RENAMED:
            self._add(_RENAMED[name], value)
            self.notes.append(f"{name} is {_RENAMED[name]} here")
        elif name in _GONE:
            self.unsupported.append((name, _GONE[name]))
        elif "--source" not in self.signature and name != "--tier":
            self.unsupported.append((name, f"{self.job.name} reads no dumps or logs"))
        elif name in _FOLDERS:
            self._source(_FOLDERS[name], value)
        elif name == "--inst":
            self.instance = _instance(value)
        elif name == "--hdir" and (match := _DBS_FOLDER.search(value)):
            # The folder of DBS itself, as dbs_spark.py takes it.
            self.instance = _instance(match["instance"])
            self.cms_folder = value[: match.start()]
        elif name == "--hdir":
            self.cms_folder = value
        else:
            self.tiers = value

    @property
    def _publishes(self) -> bool:
        return self.job.name == "cern_monit"

    def finish(self) -> None:
        """Add what several options make together. Raises UsageError (2) where something
        is not supported.
        """
        self._add_range()
        if self.instance != _ALL_INSTANCES:
            self._moved_dumps()
        if self.tiers and ("--patterns" not in self.signature or self._has("--patterns")):
            self.unsupported.append(("--tier", "filter the stored table by its column data_tier"))
        elif self.tiers:
            self._add("--patterns", ",".join(f"/*/*/{tier}" for tier in self.tiers.split(",")))
        if self._takes_a_day() and not self._has("--date"):
            if self._names_no_day:
                self.unsupported.append(
                    ("--hdir", "the folder names no day: name the day, and the job of the result")
                )
                stored_job = PurePosixPath(urlsplit(self._value("--fout") or "").path).name
                self._add(
                    "--date", "yesterday", "--job", stored_job if stored_job in JOBS else "JOB"
                )
            elif not (self._publishes or self.job.is_day_optional or self.is_misspelt):
                # The day as such: a job that waits in a queue may start on another one.
                yesterday = dates.today() - timedelta(days=1)
                self._add("--date", yesterday.isoformat())
                self.default_day = yesterday
        if self.amq:
            self.unsupported.append(
                (self.amq_option, "publish the stored table with a command of its own, with --amq")
            )
            day, fout = self._value("--date") or "yesterday", self._value("--fout")
            self.after.append(
                shlex.join(
                    [
                        "run_spark",
                        "cern_monit",
                        "--job",
                        self.job.name,
                        "--date",
                        day,
                        "--fout",
                        fout or "DIR",
                    ]
                )
                + f" --amq {shlex.quote(self.amq)}"
            )
        if self.instance == _ALL_INSTANCES:
            raise self._for_each_instance()
        if self.unsupported:
            raise UsageError(
                f"{pluralize(len(self.unsupported), 'option')} of CMSSpark not supported by run_spark {self.job.name}",
                found="; ".join(f"{name}: {instead}" for name, instead in self.unsupported),
                next_step="\n        ".join([shlex.join(["run_spark", *self.words]), *self.after]),
            )

    def _for_each_instance(self) -> UsageError:
        """Return the error with a line for each instance of DBS, as their datasets must
        not meet in one result.
        """
        fout = self._value("--fout") or "DIR"
        other_words = _without(self.words, "--fout")
        lines = [
            shlex.join(
                ["run_spark", *other_words, "--fout", f"{fout.rstrip('/')}/{name}", "--inst", name]
            )
            for name in _INSTANCES
        ]
        return UsageError(
            "--inst=all is one run for each instance of DBS",
            found="a dataset may be in several instances; one store has one result for each day",
            next_step="\n        ".join(lines),
        )

    def _range_end(self, name: str, value: str) -> None:
        day = dates.parse_day(value, latest=date.max)
        if name == "--start_date":
            self.first_day = day
        else:
            self.end_day = day

    def _add_range(self) -> None:
        """Add the days of --start_date and --end_date, which CMSSpark does not include."""
        if self.first_day is None and self.end_day is None:
            return
        last = (
            self.end_day - timedelta(days=1) if self.end_day else dates.today() - timedelta(days=1)
        )
        first = self.first_day or last
        if first > last:
            raise UsageError(
                "--start_date is before --end_date",
                found=f"{first} and {self.end_day}",
                next_step="swap the days",
            )
        if "--from" in self.signature:
            self._add("--from", first.isoformat(), "--to", last.isoformat())
        else:
            self._add("--date", dates.compact(first) if first == last else span(first, last))

    def _takes_a_day(self) -> bool:
        return "--date" in self.signature and not self._has("--help") and not self._has("-h")

    def _has(self, name: str) -> bool:
        return any(word == name or word.startswith(f"{name}=") for word in self.words)

    def _value(self, name: str) -> str | None:
        for position, word in enumerate(self.words):
            if word.startswith(f"{name}="):
                return word.partition("=")[2]
            if word == name and position + 1 < len(self.words):
                return self.words[position + 1]
        return None

    def _add(self, *words: str) -> None:
        self.words += words

    def _stored_day(self, folder: str) -> None:
        """Take ``--hdir STORE/2017/09/25`` of cern_monit, which names a store and a day."""
        match = _DAY_AT_END.fullmatch(folder)
        self._names_no_day = match is None
        self._add("--fout", match["store"] if match else folder)
        if match and not self._has("--date"):
            self._add("--date", match["year"] + match["month"].zfill(2) + match["day"].zfill(2))

    def _source(self, source: str, folder: str) -> None:
        names = list(read_yaml("etc/sources.yaml")[source])
        # The location whose name is part of the path, such as `raw` or `avro`; else the first.
        name = next(
            (
                name
                for name in names
                if name in re.split(r"[/_-]+", folder) or f"/{name}/" in folder
            ),
            names[0],
        )
        self._add("--source", f"{source}.{name}={self._located(folder)}")

    def _moved_dumps(self) -> None:
        """Take the folders of --hdir and --inst, where they are not those of production."""
        folder = self.cms_folder.rstrip("/")
        if not folder and self.instance == "global":
            return
        is_moved = bool(folder) and urlsplit(folder).path.rstrip("/") != CMS_FOLDER
        for source, locations in read_yaml("etc/sources.yaml").items():
            for name, location in locations.items():
                # Beside the sources there are the epochs, which have no folder.
                before = location.get("folder", "")
                path = before.replace("PROD_GLOBAL", f"PROD_{self.instance.upper()}")
                if not before.startswith(f"{CMS_FOLDER}/") or (path == before and not is_moved):
                    continue
                path = folder + path[len(CMS_FOLDER) :] if is_moved else path
                self._add("--source", f"{source}.{name}={self._located(path)}")

    def _located(self, folder: str) -> str:
        """Return a path as a URI of HDFS, unless it has a scheme, lies under a root, or
        exists on this host.
        """
        if (
            not folder.startswith("/")
            or self._has("--root")
            or self.has_root()
            or Path(folder).exists()
        ):
            return folder
        return f"hdfs://{folder}"


def span(first: date, last: date) -> str:
    """Return the text of a range of days for --date."""
    return f"{dates.compact(first)}..{dates.compact(last)}"


def _without(words: Sequence[str], name: str) -> list[str]:
    """Return the words without an option and its value."""
    remaining = list(words)
    for position, word in enumerate(remaining):
        if word == name or word.startswith(f"{name}="):
            del remaining[position : position + (1 if "=" in word else 2)]
            return remaining
    return remaining


def _instance(value: str) -> str:
    if value.lower() not in (*_INSTANCES, _ALL_INSTANCES):
        raise UsageError(
            f"unknown DBS instance {value!r}",
            next_step=f"--inst takes one of {', '.join(_INSTANCES)}",
        )
    return value.lower()


# Lines on what jobs cost and of the C-RSG plots: the lines that do their work here.

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
    if "--iterative" in options and "--last_n_months" not in options:
        return _iterative_range(line)
    if "--offset_days" in options:
        yesterday = dates.today() - timedelta(days=_count(line, "--offset_days", 3))
    count = _count(line, "--last_n_days", _LAST_DAYS.get(line.script, 30))
    if "--last_n_months" in options and not {"--start_date", "--end_date"} <= options.keys():
        return _months_range(line)
    first: date | None = _day(options["--start_date"]) if "--start_date" in options else None
    end: date | None = _day(options["--end_date"]) if "--end_date" in options else None
    if first is not None and end is not None:
        for name in ("--last_n_days", "--last_n_months", "--offset_days"):
            if name in options:
                line.note_difference(f"{name} is not needed: the line has both dates")
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


def _months_range(line: OldLine) -> tuple[date, date]:
    """Return the days of ``--last_n_months``: from the first of a month to three days
    ago, unless the line names a day.
    """
    options, count = line.options, _count(line, "--last_n_months", 19)
    two_days_ago = dates.today() - timedelta(days=2)
    end = _day(options["--end_date"]) if "--end_date" in options else two_days_ago
    if "--start_date" in options:
        first = _day(options["--start_date"])
        if "--end_date" not in options:
            end = min(dates.months_before(first, -count), two_days_ago)
    else:
        first = dates.months_before(end, count).replace(day=1)
    last = end - timedelta(days=1)
    line.note_difference(f"the days are {first} to {last}, as CMSSpark chooses them today")
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
    return f"cmsspark sql {quoted(query)} {shlex.join(['--fout', _store(line)])}"


def quoted(query: str) -> str:
    """Return a query, which has single quotes, as one word of a shell."""
    has_special = re.search(r'["\\`!]|\$[\w({@*#?$-]', query)
    return shlex.quote(query) if has_special else f'"{query}"'


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
    chosen_type = f" and type in ('{_quoted(kind.lower())}')" if kind else ""
    above, below = efficiency.CPU
    keys = ", ".join([*([] if kind else ["type"]), *([] if outlier else ["outcome"]), "workflow"])
    query = (
        # The text is printed, not run.
        f"select {keys}, 100 * sum({above}) / sum({below}) as CpuEfficiency,"  # noqa: S608
        " (sum(core_with_cpu_ms) - sum(cpu_ms)) / 3600000 as WastedCpuTimeHr"
        f" from job_efficiency where day between '{first}' and '{last}' and outcome in ({outcomes})"
        f"{chosen_type} group by all order by WastedCpuTimeHr desc"
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
    names = {
        name: {f"--{key}": ",".join(texts) for key, texts in selection.items() if texts}
        for name, selection in read_yaml("etc/crsg.yaml").items()
    }
    if name := next((name for name, selection in names.items() if chosen == selection), None):
        line.note_difference(f"--tiers, --skims and --remove are those of the selection `{name}`")
        chosen = {}
    elif chosen:
        # A selection of one's own takes what a line does not name from CMSSpark's defaults.
        defaults = {"--tiers": _CRSG_TIERS, "--remove": _CRSG_REMOVE}
        lacking = {name: text for name, text in defaults.items() if name not in chosen}
        for name, text in lacking.items():
            line.note_difference(f"{name} has CMSSpark's default: {text}")
        chosen = {**chosen, **lacking}
    else:
        line.note_difference(
            "the selections `simulation` (CMSSpark's default --tiers and --remove) and `data` "
            "are counted and drawn"
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
