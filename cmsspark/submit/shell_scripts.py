"""CMSSpark's shell scripts in one table: the lines of its Python scripts that each starts,
with the days and the selections that the shell script chooses itself.

Crontabs name shell scripts with words by position, such as ``cron_CRABpopularity.sh OUT
START END``. ``docs/migration.md`` has the same scripts.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from datetime import date, timedelta
from pathlib import PurePosixPath
from typing import Final

import msgspec

from cmsspark.base import dates
from cmsspark.base.errors import UsageError
from cmsspark.submit.arguments import option_named
from cmsspark.submit.old_scripts import SCRIPTS, plain_name

#: Values of a line by name: ``output``, ``start`` …
Values = dict[str, str]


class Shell(msgspec.Struct, frozen=True):
    """A shell script. ``starts``: the lines that it starts, where ``{name}`` stands for
    a value; an option whose value a line lacks is left out, and other words of the line
    are passed on.

    ``words``: the names of its words by position; ``options``: names of values by
    option; ``defaults``: adds the values that a line lacks; ``notes``: what becomes of
    a value that no start takes.
    """

    starts: tuple[str, ...]
    words: str = ""
    defaults: Callable[[Values], None] = lambda values: None
    options: Mapping[str, str] = msgspec.field(default_factory=dict)
    notes: Mapping[str, str] = msgspec.field(default_factory=dict)


def _first_of_month() -> date:
    return dates.today().replace(day=1)


def _add_year(values: Values) -> None:
    """Add twelve months up to the first day of this one, which is not included."""
    end = dates.parse_day(values.setdefault("end", str(_first_of_month())), latest=date.max)
    values.setdefault("start", str(dates.months_before(end.replace(day=1), 12)))


def _add_days_ago(first: int, end: int) -> Callable[[Values], None]:
    """Return what adds the days from ``first`` days ago, up to and without ``end`` days ago."""

    def add(values: Values) -> None:
        values.setdefault("start", str(dates.today() - timedelta(days=first)))
        values.setdefault("end", str(dates.today() - timedelta(days=end)))

    return add


def _add_efficiency_days(values: Values) -> None:
    if "last" not in values:
        _add_days_ago(31, 1)(values)


def _add_backfill(values: Values) -> None:
    """Add the days that backfill_dbs_condor.sh looks for: a week that ends yesterday."""
    last = dates.parse_day(
        values.setdefault("start", str(dates.today() - timedelta(days=1))), latest=date.max
    )
    first = last - timedelta(days=int(values.setdefault("count", "7")) - 1)
    values["days"] = f"{first:%Y%m%d}..{last:%Y%m%d}"


def _add_eos_month(values: Values) -> None:
    """Add the month before this one, and the year that ends with it."""
    month = values.setdefault("month", f"{dates.months_before(_first_of_month(), 1):%Y/%m}")
    values.setdefault("mode", "append")
    values.setdefault("output", ".")
    try:
        first = date(int(month[:4]), int(month[5:7]), 1)
    except ValueError:
        raise UsageError("there is no such month", found=repr(month)) from None
    after = dates.months_before(first, -1)
    last = after - timedelta(days=1)
    values.update(
        first=f"{first:%Y%m%d}",
        last=f"{last:%Y%m%d}",
        year=f"{dates.months_before(after, 12):%Y%m%d}",
    )


def _add_phedex_year(values: Values) -> None:
    last = dates.today()
    values.update(first=f"{last - timedelta(days=364):%Y%m%d}", last=f"{last:%Y%m%d}")


_DAYS: Final = "--start_date {start} --end_date {end}"
_OUT_DAYS: Final = f"--output_folder {{output}} {_DAYS}"
_CRAB: Final = Shell((f"dbs_hdfs_crab {_OUT_DAYS}",), "output start end", _add_year)
_CRAB_USERS: Final = Shell(
    (f"condor_crab_unique_users {_OUT_DAYS}",), "output start end", _add_year
)
_HPC: Final = Shell((f"hpc_at_cms {_OUT_DAYS}",), "output start end", _add_year)
_T1: Final = "--include_re T1_.* --exclude_re ^$"
_HS06: Final = Shell(
    tuple(
        f"condor_hs06coreHrPlot --by {by} {sites} {_OUT_DAYS}"
        for sites in ("", _T1)
        for by in ("month", "weekofyear")
    ),
    "output start end",
    _add_year,
)
_EFFICIENCY: Final = Shell(
    (
        "condor_cpu_efficiency --cms_type= --cpu_eff_outlier= --output_folder {output} "
        "--last_n_days {last}",
    ),
    "output last",
)
_WEB: Final = Shell(
    tuple(
        f"{name} --hdfs_out_dir {{output}} --last_n_days {{last}} {_DAYS}"
        for name in ("cpueff_condor_goweb", "cpueff_stepchain_goweb")
    ),
    "output last",
    _add_efficiency_days,
)
_EOS: Final = Shell(
    (
        "dbs_hdfs_eos run-update --mode {mode} --date {month}/*",
        "dbs_hdfs_eos run-report-totals --outputDir "
        "{output}/dataset_totals_yearly_{year}_{last}.csv --period {year} {last}",
        "dbs_hdfs_eos run-report-totals --outputDir "
        "{output}/dataset_totals_{first}_{last}.csv --period {first} {last}",
    ),
    "output month mode",
    _add_eos_month,
)
_CRSG: Final = Shell(
    ("dbs_event_count_plot --output_folder {output}/F9 --output_format {format}",),
    "output format",
    lambda values: values.update(output=values.get("output", "DIR")),
)
_AGGREGATION: Final = Shell(
    ("cmsspark daily --date {date}",),
    "conf date",
    notes={
        "conf": "its folders, store and credentials are in the settings here (docs/operations.md)"
    },
)
_COPIED: Final = {"copy": "nothing has to be copied: cmsspark show JOB --path prints the folder"}
_EVENTS: Final = Shell(("dbs_events --date {date}",), "copy date", notes=_COPIED)
_CONDOR: Final = Shell(("dbs_condor --date {date}",), "copy date", notes=_COPIED)
_TIERS: Final = Shell(("aggregate_phedex --date {date}", "aggregate_dbs --date {date}"), "date")
_CAMPAIGNS: Final = Shell(("aggregate_campaigns --date {date}",), "date")
_DUMPS: Final = "the tables are read from dumps: sources in the settings (docs/feeds.md)"
_RUCIO: Final = {
    "options": {
        **{"--amq": "creds", "--eos": "output"},
        **{"--cmsr": "dbs", "--rucio": "rucio", "--cmsmonitoring": "zip", "--stomp": "stomp"},
    },
    "notes": {
        **{"dbs": _DUMPS, "rucio": _DUMPS},
        **dict.fromkeys(("zip", "stomp"), "not needed: cmsspark brings what it imports"),
    },
}
_RUCIO_STATS: Final = Shell(
    ("rucio_datasets_stats --creds {creds} --base_eos_dir {output}",),
    options=_RUCIO["options"],
    notes=_RUCIO["notes"],
)

#: A shell script of CMSSpark, without its ending → the lines that it starts. A name with
#: a folder is that of a script of this folder.
SHELL: Final[Mapping[str, Shell]] = {
    **dict.fromkeys(("run_aggregation", "cron4aggregation"), _AGGREGATION),
    "cern_monit": Shell(("cern_monit",)),
    "dbs_aaa_spark": Shell(("dbs_aaa",)),
    "dbs_cmssw_spark": Shell(("dbs_cmssw",)),
    "dbs_eos_spark": Shell(("dbs_eos",)),
    "dbs_phedex_spark": Shell(("dbs_phedex",)),
    "dbs_spark": Shell(("dbs_spark",)),
    "dbs_phedex_stats": Shell(("dbs_phedex --antipatterns *BUNNIES*",)),
    "dataset_stats": Shell(
        (
            "dbs_spark --antipatterns *BUNNIES*,*Commissioning*,*RelVal* "
            "--tier AOD,MINIAOD,GEN,RAW,RECO,USER --amq amq_broker.json",
        )
    ),
    **dict.fromkeys(("cron4dbs_events", "run_dbs_events", "get_dbs_events"), _EVENTS),
    **dict.fromkeys(("cron4phedex", "run_phedex"), Shell(("phedex --date {date}",), "date")),
    "cron4phedex_df": Shell(
        ("mergePhedex --idir DIR --fout phedex_{first}_{last}.csv --dates {first}-{last}",),
        defaults=_add_phedex_year,
    ),
    **dict.fromkeys(
        ("cron4dbs_condor", "cron4dbs_condor_df", "run_dbs_condor", "get_dbs_condor"), _CONDOR
    ),
    "backfill_dbs_condor": Shell(
        ("dbs_condor --date {days}",), "start count copy", _add_backfill, notes=_COPIED
    ),
    **dict.fromkeys(("cron4crab_popularity", "cron_CRABpopularity"), _CRAB),
    "run_hdfs_crab": Shell(("dbs_hdfs_crab",)),
    **dict.fromkeys(("cron4crab_unique_users", "cron_crab_unique_users"), _CRAB_USERS),
    "run_crab_unique_users": Shell(("condor_crab_unique_users",)),
    **dict.fromkeys(("cron4eos_dataset", "cron_EOSdataset"), _EOS),
    "run_hdfs_eos": Shell(("dbs_hdfs_eos",)),
    **dict.fromkeys(("cron4gen_crsg_plots", "cron_genCRSGplots"), _CRSG),
    "generate_event_count_plot": Shell(("dbs_event_count_plot",)),
    "cron4rucio_daily": Shell(("rucio_daily --output {output}",)),
    "run_rucio_daily": Shell(("rucio_daily",)),
    **dict.fromkeys(
        ("cron4rucio_datasets_daily_stats", "cron4rucio_datasets_stats"), _RUCIO_STATS
    ),
    "cron4rucio_datasets_last_access_ts": Shell(
        ("rucio_datasets_last_access_ts --output_dir {output} --min_tb_limit 1",), "output"
    ),
    "cron4rucio_ds_summary": Shell(
        ("rucio_ds_summary --creds {creds}",), options=_RUCIO["options"], notes=_RUCIO["notes"]
    ),
    "cron4rucio_datasets_monitoring": Shell(("rucio_datasets_monitoring",)),
    **dict.fromkeys(("report_tiers", "report_tiers/aggregate"), _TIERS),
    "report_campaigns": _CAMPAIGNS,
    "report_campaigns/aggregate": _CAMPAIGNS,
    "report_leftovers": Shell(("aggregate_leftovers --date {date}",), "date"),
    **dict.fromkeys(("cron4hpc_at_cms", "cron_hpc_at_cms"), _HPC),
    "run_hpc_at_cms": Shell(("hpc_at_cms",)),
    "cron4hpc_usage": Shell(
        (
            "hpc_running_cores_and_corehr --output_dir {output} --last_n_months {months} "
            "--url_prefix {url} --iterative",
        ),
        "output months url",
        options={"--url": "url"},
    ),
    "cron4hpc_monthly_stats": Shell(
        (
            "hpc_running_cores_and_corehr --output_dir {output} --last_n_months {months} "
            f"{_DAYS} --url_prefix {{url}}",
        ),
        "output months start end url",
        options={"--url": "url"},
    ),
    **dict.fromkeys(("cron4hs06_cputime_plot", "cron_hs06cputime_plot"), _HS06),
    "run_hs06cputime_plot": Shell(("condor_hs06coreHrPlot",)),
    **dict.fromkeys(("cron_condor_cpu_efficiency", "k8s_condor_cpu_efficiency"), _EFFICIENCY),
    "run_condor_cpu_efficiency": Shell(("condor_cpu_efficiency",)),
    "k8s_stepchain_cpu_eff": Shell(
        ("stepchain_cpu_eff --output_folder {output} --last_n_days {last}",), "output last"
    ),
    "run_stepchain_cpu_eff": Shell(("stepchain_cpu_eff",)),
    **dict.fromkeys(("cron4cpueff", "cron4cpueff_goweb"), _WEB),
    "cron4wma_agent_count": Shell(
        (f"wma_agent_count_to_opensearch {_DAYS}",),
        "",
        _add_days_ago(10, 3),
    ),
}
#: Shell scripts whose work nothing here does.
SHELL_WITHOUT_SUCCESSOR: Final = frozenset(
    {
        "cron4rucio_datasets_to_mongo",
        "cron4rucio_ds_mongo",
        "cron4rucio_datasets_to_hdfs",
        "cron4rucio_hdfs2mongo",
        "cron4rucio_hdfs_to_mongo",
        "cron4rucio_spark2hdfs",
        "cron4wma_crab_ds_access",
        "run_hdfs_an",
        "download_and_concat",
        "delete_trash",
        "getarg",
        "reports_init",
        "cron_job",
    }
)
#: Options that CMSSpark's shell scripts share → the value that they name.
_OPTIONS: Final[Mapping[str, str]] = {
    **{"--output": "output", "--last_n_days": "last", "--date": "date", "--fout": "fout"},
    **{"--p1": "port", "--p2": "port", "--host": "port", "--keytab": "keytab"},
    **{"--keytab_secret": "keytab", "--wdir": "folder"},
}
_NOTES: Final[Mapping[str, str]] = {
    "port": "a job on Kubernetes takes no ports of its own",
    "keytab": "the settings name the keytab (docs/operations.md)",
    "folder": "bin/run_spark knows its own checkout",
    "secret": "cmsspark publish has credentials of its own (docs/publishing.md)",
}
_TEST: Final = "--test"
#: What a word by position may be → the names of values that it fits.
_DAY_WORD: Final = re.compile(r"\d{8}|\d{4}[-/]\d\d[-/]\d\d")
_FORMS: Final = (
    (_DAY_WORD, {"date", "start", "end"}),
    (re.compile(r"\d{4}/\d\d"), {"month"}),
    (re.compile(r"\d{1,4}"), {"last", "months", "count"}),
)


def shell_name(path: str) -> str | None:
    """Return the name in the table of a shell script, by its name or path; None for none."""
    plain = plain_name(path)
    for name in (f"{PurePosixPath(path).parent.name}/{plain}", plain):
        if name in SHELL or name in SHELL_WITHOUT_SUCCESSOR:
            return name
    return None


class Started(msgspec.Struct):
    """The lines that a shell script starts, each as a script and its words, and notes
    on words of the line that none of them has; ``refused``: words that are not supported.
    """

    lines: list[tuple[str, list[str]]]
    notes: list[str]
    refused: list[str]


def started(name: str, words: Sequence[str]) -> Started:
    """Return the lines that the shell script ``name`` of the table starts for a line."""
    shell = SHELL[name]
    needless: dict[str, list[str]] = {}
    refused: list[str] = []
    values: Values = {}
    passed_on = _take_options(shell, words, values, needless, refused)
    notes = [
        f"{', '.join(names)} {'is' if len(names) == 1 else 'are'} not needed: {reason}"
        for reason, names in needless.items()
    ]
    passed_on = _take_by_position(shell.words.split(), passed_on, values)
    shell.defaults(values)
    for key, text in shell.notes.items():
        if key in values:
            notes.append(f"{values[key]}: {text}")
    script_lines = []
    for start in shell.starts:
        script, *template = start.split()
        if script == "cmsspark":
            script, template = f"{script} {template[0]}", template[1:]
        script_lines.append((script, [*_filled(template, values), *passed_on]))
    return Started(script_lines, notes, refused)


def _take_options(
    shell: Shell,
    words: Sequence[str],
    values: Values,
    needless: dict[str, list[str]],
    refused: list[str],
) -> list[str]:
    """Take the options of the shell script itself, and return the other words.
    ``needless``: the reason → the options that are not needed for it.
    """
    passed_on, remaining = [], list(words)
    named_by_starts = "".join(shell.starts)
    while remaining:
        word = remaining.pop(0)
        name, equals, value = word.partition("=")
        key = shell.options.get(name) or _OPTIONS.get(name)
        if name == "--conf" and "=" not in (value or "".join(remaining[:1])):
            key = "secret"  # a file, and no option of Spark
        if (
            key
            and key not in shell.notes
            and key not in _NOTES
            and f"{{{key}}}" not in named_by_starts
        ):
            key = None  # an option of the Python script
        if name == _TEST and "{start}" in named_by_starts:
            refused.append(
                f"{_TEST}: name fewer days (--start_date), and a store for a trial (--fout)"
            )
        elif key is None:
            passed_on.append(word)
            if not equals and _has_value(shell, name, remaining):
                passed_on.append(remaining.pop(0))
        else:
            if not equals:
                if not remaining:
                    raise UsageError(f"{name} needs a value")
                value = remaining.pop(0)
            if key in _NOTES:
                needless.setdefault(_NOTES[key], []).append(name)
            else:
                values[key] = value
    return passed_on


def _has_value(shell: Shell, name: str, following: Sequence[str]) -> bool:
    """Return whether an option that is passed on takes the next word."""
    if not name.startswith("-") or not following:
        return False
    for start in shell.starts:
        if (declared := SCRIPTS.get(start.split()[0], {}).get(name)) is not None:
            return declared.values == 1
    if (option := option_named(name)) is not None:
        return option.metavar is not None
    return not following[0].startswith("-")


def _take_by_position(names: list[str], words: list[str], values: Values) -> list[str]:
    """Take the words by position, each as the first value that it fits, and return the others.

    A day is a day and a number a number, also where an older form of the script had
    other words before it.
    """
    remaining = [name for name in names if name not in values]
    passed_on: list[str] = []
    previous = ""
    special = set().union(*(fits for _, fits in _FORMS))
    for word in words:
        is_value = previous.startswith("-") and "=" not in previous
        previous = word
        if word.startswith("-") or is_value:
            passed_on.append(word)
            continue
        fits = next((fits for form, fits in _FORMS if form.fullmatch(word)), None)
        name = next(
            (name for name in remaining if (name in fits if fits else name not in special)), None
        )
        if name is None:
            passed_on.append(word)
        else:
            values[name] = word
            remaining.remove(name)
    return passed_on


def _filled(template: Sequence[str], values: Values) -> list[str]:
    """Return the words of a start with values, without options whose value lacks."""
    words: list[str] = []
    for word in template:
        names = re.findall(r"\{(\w+)\}", word)
        if all(name in values for name in names):
            words.append(word.format(**{name: values[name] for name in names}) if names else word)
        elif words and words[-1].startswith("--"):
            words.pop()
    return words
