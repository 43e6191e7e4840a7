"""CMSSpark's own scripts in one table: the options that each declares, and what becomes
of each option here.

An option is carried over, named as dropped, or refused with what to do instead: it is
never silently changed. The declarations are those of CMSSpark's newest commit, and those
of older ones that crontabs still have. ``docs/migration.md`` has the same scripts.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import PurePosixPath
from typing import Final

import msgspec

from cmsspark.base.errors import UsageError
from cmsspark.base.text.spelling import suggestion
from cmsspark.submit.arguments import Option, option_named

#: A number of values: as many words as follow, up to the next option.
MANY: Final = -1
#: What becomes of an option.
CARRIED, DROPPED, REFUSED = "carried", "dropped", "refused"


class Old(msgspec.Struct, frozen=True):
    """An option of a script of CMSSpark. ``values``: words behind it; ``about``: why it
    is dropped, or what to do instead of it.
    """

    fate: str
    about: str = ""
    values: int = 1


def _carried(*names: str, values: int = 1) -> dict[str, Old]:
    return {name: Old(CARRIED, values=values) for name in names}


def _dropped(reason: str, *names: str, values: int = 1) -> dict[str, Old]:
    return {name: Old(DROPPED, reason, values) for name in names}


def _refused(instead: str, *names: str, values: int = 1) -> dict[str, Old]:
    return {name: Old(REFUSED, instead, values) for name in names}


_PAGES: Final = "pages are served by cmsspark dashboard"
_PLOTS: Final = "the table has the numbers; cmsspark dashboard draws them"
#: The options that jobs of CMSSpark share (its ``conf.py``).
CONF: Final[Mapping[str, Old]] = {
    **_carried("--hdir", "--fout", "--date"),
    **_carried("--no-log4j", "--yes-log4j", "--yarn", "--verbose", values=0),
    **_refused("name the folder of a source with --source SOURCE.NAME=FOLDER", "--fin"),
    **_dropped(
        "the Python of run_spark runs the job; SPARK_HOME, JAVA_HOME, HADOOP_CONF_DIR and --env "
        "choose the rest",
        "--cvmfs",
        values=0,
    ),
    **_refused("add --yarn --deploy-mode cluster", "--yarn-cluster", values=0),
}
_INST: Final = _carried("--inst")
_DATES: Final = _carried("--start_date", "--end_date")
_PLOT_FLAG: Final = _dropped(_PLOTS, "--generate_plots", values=0)
_CREDENTIALS: Final = {
    **_carried("--creds"),
    **_refused(
        "name the folder of Rucio's tables with --source rucio.dated=FOLDER", "--base_hdfs_dir"
    ),
    **_dropped("the size of batches is set in the settings (publishing)", "--amq_batch_size"),
    **_refused("name a test topic in the credentials file", "--test", values=0),
}
_OPENSEARCH: Final = {
    **_dropped("documents go through MONIT, with --amq", "--opensearch_secret_file"),
    **_dropped("MONIT names the index of documents", "--opensearch_index"),
    **_carried("--opensearch_host"),
}
_OPENSEARCH_OLD: Final = {
    **_dropped("cmsspark publish sends documents where its settings say", "--es_host"),
    **_dropped("cmsspark publish has its own credentials", "--es_secret_file"),
    **_dropped("cmsspark publish names the index", "--es_index"),
}
_EFFICIENCY_LIMITS: Final = _refused(
    "add `having` to the query: its column CpuEfficiency is in percent", "--min_eff", "--max_eff"
)
_STEP_LIMITS: Final = _refused(
    "add `having` to the query: its column cpu_efficiency is a share", "--min_eff", "--max_eff"
)
_QUERY_OF_FILES: Final = {
    **CONF,
    **_dropped(
        "a query of the dumps runs on this host", "--yarn", "--no-log4j", "--verbose", values=0
    ),
    **_refused("write the pattern into the query, after where", "--patterns", "--antipatterns"),
    **_refused("cmsspark sql --dumps reads the folders of the settings (sources)", "--hdir"),
    **_INST,
}
_PHEDEX: Final = _carried("--patterns", "--antipatterns")
_HPC: Final = {
    **_DATES,
    **_carried("--output_folder", "--output_dir", "--iterative_ndays_ago", "--last_n_months"),
    **_carried("--iterative", values=0),
    **_dropped(
        "pages are served by cmsspark dashboard, which has short addresses", "--url_prefix"
    ),
    **_dropped(_PAGES, "--html_template"),
    **_dropped("each day is stored once, and periods are made of stored days", "--save_pickle"),
}
_RUCIO_PAGES: Final = {
    **_refused("filter the stored table by its column disk_bytes", "--disk", values=0),
    **_refused("filter the stored table by its column tape_bytes", "--tape", values=0),
    **_dropped(_PAGES, "--static_html_dir"),
    **_dropped("the names of storage elements come from Rucio's dump", "--rses_pickle"),
    **_refused("filter the stored table: disk_bytes + tape_bytes >= … * 1e12", "--min_tb_limit"),
    **_carried("--output_dir", "--fdate", "--hdfs_out_dir"),
}

#: Script without ``.py`` → its options beside those that every line of run_spark takes.
SCRIPTS: Final[Mapping[str, Mapping[str, Old]]] = {
    "cmsspark daily": _carried("--date", "--fout"),
    "aggregate_campaign_tier": {**CONF, **_INST, **_refused("add `limit` to a query", "--limit")},
    "aggregate_campaigns": {
        **CONF,
        **_INST,
        **_refused("the table has all campaigns: cmsspark sql … limit N", "--limit"),
    },
    "aggregate_dbs": {**CONF, **_INST},
    "aggregate_leftovers": {**CONF, **_INST},
    "aggregate_phedex": {**CONF, **_INST},
    "condor_cpu_efficiency": {
        **_DATES,
        **_carried("--cms_type", "--output_folder", "--last_n_days", "--cpu_eff_outlier"),
        **_carried("--offset_days"),
        **_EFFICIENCY_LIMITS,
        **_PLOT_FLAG,
    },
    "condor_crab_unique_users": {
        **_DATES,
        **_dropped("there is a row for each week and for each month", "--by"),
        **_carried("--include_re", "--exclude_re"),
        **_PLOT_FLAG,
        **_carried("--output_folder"),
    },
    "condor_hs06coreHrPlot": {
        **_DATES,
        **_carried("--by", "--include_re", "--exclude_re", "--output_folder"),
        **_PLOT_FLAG,
    },
    "cpueff_condor_goweb": {
        **_DATES,
        **_carried("--hdfs_out_dir", "--last_n_days", "--cms_type", "--cpu_eff_outlier"),
        **_EFFICIENCY_LIMITS,
    },
    "cpueff_stepchain_goweb": {
        **_DATES,
        **_carried("--hdfs_out_dir", "--last_n_days"),
        **_STEP_LIMITS,
    },
    "data_agg": {**CONF, **_INST},
    "data_collection": {**CONF, **_INST},
    "dates": {
        **_carried("--start", "--ndays"),
        **_dropped("--date takes days as 20260115 and as 2026-01-15", "--format"),
        **_dropped("--date of a job takes the whole range", "--range", values=0),
    },
    "dbs_adler": _QUERY_OF_FILES,
    "dbs_block_lumis": _QUERY_OF_FILES,
    "dbs_event_count_plot": {
        **_carried("--start_month", "--output_folder", "--output_format"),
        **_carried("--tiers", "--skims", "--remove", values=MANY),
        **_carried("--only_valid_files", values=0),
        **_refused(
            "the picture ends with the newest month: cmsspark sql "
            "\"select * from crsg_event_counts where month <= '…'\" prints the rows up to a month",
            "--end_month",
        ),
        **_refused("the picture has colours of its own", "--colors_file"),
        **_dropped("cmsspark sql --csv prints any table", "--generate_csv", values=0),
        **_dropped("etc/crsg.yaml has the selections", "--attributes"),
        **_refused("--start_month chooses a short time", "--test", values=0),
        **_carried("--verbose", values=0),
    },
    "dbs_hdfs_crab": {**_DATES, **_PLOT_FLAG, **_carried("--output_folder")},
    "dbs_hdfs_eos": {
        **_carried("--verbose", values=0),
        **_carried("--parquet_location", "--mode", "--date", "--outputDir", "--appfilter"),
        **_dropped(_PLOTS, "--only_csv", values=0),
        **_carried("--period", values=2),
    },
    "dbs_lfn": _QUERY_OF_FILES,
    "dbs_spark": {**CONF, **_INST, **_PHEDEX},
    "hpc_at_cms": _HPC,
    "hpc_running_cores_and_corehr": _HPC,
    "jm_stats": {
        **CONF,
        **_refused("group the stored table by the column that you need: cmsspark sql", "--agg"),
    },
    "mergePhedex": {**_carried("--idir", "--fout", "--dates"), **_carried("--verbose", values=0)},
    "phedex_agg": {
        **CONF,
        **_PHEDEX,
        **_refused("the stored days are one table: cmsspark sql", "--idir", "--dates"),
    },
    "rucio_all_datasets": _RUCIO_PAGES,
    "rucio_all_detailed_datasets": _RUCIO_PAGES,
    "rucio_datasets_daily_stats": {
        **_CREDENTIALS,
        **_carried("--fdate", "--base_eos_dir"),
        **_dropped("the manifest of a run names its version", "--cmsspark_git_tag"),
    },
    "rucio_datasets_last_access_ts": _RUCIO_PAGES,
    "rucio_datasets_monitoring": {**_carried("--hdfs_out_dir"), **_OPENSEARCH},
    "rucio_datasets_stats": {
        **_CREDENTIALS,
        **_carried("--fdate", "--base_eos_dir"),
        **_dropped("the manifest of a run names its version", "--cmsspark_git_tag"),
    },
    "rucio_ds_mongo": {**_carried("--hdfs_out_dir"), **_CREDENTIALS, **_OPENSEARCH},
    "rucio_ds_summary": _CREDENTIALS,
    "stepchain_cpu_eff": {
        **_DATES,
        **_carried("--output_folder", "--last_n_days"),
        **_STEP_LIMITS,
    },
    "wma_agent_count_to_opensearch": {**_DATES, **_OPENSEARCH_OLD},
}
#: Scripts that run as they are: ``run_spark`` understands these options of their lines
#: (:mod:`cmsspark.submit.cmsspark_lines`).
BUILT_IN_OPTIONS: Final[Mapping[str, tuple[str, ...]]] = {
    "cern_monit": ("--hdir", "--stomp", "--amq", "--aggregation_schema", "--verbose"),
    "cern_monit3": ("--hdir", "--amq", "--aggregation_schema", "--verbose"),
    "data_aggregation": (*CONF, "--inst", "--aaa_hdir"),
    "dbs_aaa": (*CONF, "--inst"),
    "dbs_cmssw": (*CONF, "--inst"),
    "dbs_condor": (*CONF, "--inst"),
    "dbs_eos": (*CONF, "--inst"),
    "dbs_events": (*CONF, "--inst", "--patterns", "--antipatterns"),
    "dbs_jm": (*CONF, "--inst"),
    "dbs_phedex": (*CONF, "--inst", "--patterns", "--antipatterns"),
    "phedex": tuple(CONF),
    "rucio_daily": ("--fdate", "--output", "--verbose"),
}


class OldLine(msgspec.Struct):
    """A line of a script, read by the options that it declares.

    ``words``: the options that are carried over, in order, as the script would take them;
    ``options``: their values by name; ``wrapper``: options of run_spark itself; ``notes``:
    a line for each option that is dropped, ``refused``: for each that is refused.
    """

    script: str
    words: list[str] = msgspec.field(default_factory=list)
    options: dict[str, str] = msgspec.field(default_factory=dict)
    wrapper: list[str] = msgspec.field(default_factory=list)
    positional: list[str] = msgspec.field(default_factory=list)
    notes: list[str] = msgspec.field(default_factory=list)
    refused: list[str] = msgspec.field(default_factory=list)

    def note_difference(self, text: str) -> None:
        """Add a difference of meaning, which is one line of the answer."""
        self.notes.append(text)


def is_day(text: str) -> bool:
    """Return whether a word is a day in one of CMSSpark's forms."""
    return re.fullmatch(r"\d{8}|\d{4}[-/]\d\d[-/]\d\d", text) is not None


def plain_name(name: str) -> str:
    """Return the name of a script without its folder and its ending."""
    return re.sub(r"\.(py|sh)$", "", PurePosixPath(name).name)


def read(script: str, words: Sequence[str], of_job: Iterable[str] = ()) -> OldLine:
    """Read a line by the options of the script, and those of run_spark.

    ``of_job``: options of the job here, which a line may have, too. Raises UsageError (2)
    for a value that is missing.
    """
    declared = SCRIPTS.get(script, {})
    line = OldLine(script)
    remaining, new_options = list(words), set(of_job)
    while remaining:
        word = remaining.pop(0)
        name, equals, value = word.partition("=")
        if word == "--":
            line.words += ["--", *remaining]
            break
        if word in ("--help", "-h"):
            continue  # the answer is the help
        if not word.startswith("-") or re.fullmatch(r"-\d.*", word):
            line.positional.append(word)
            continue
        declared_option = _find(name, declared)
        if declared_option is None:
            _take_other(line, word, remaining, new_options, declared)
            continue
        name, option = declared_option
        values = _values(script, name, option.values, value if equals else None, remaining)
        if option.fate == DROPPED:
            line.notes.append(f"{name} is not needed: {option.about}")
        elif option.fate == REFUSED:
            shown = f" {' '.join(values)}" if values else ""
            line.refused.append(f"{name}{shown}: {option.about}")
        else:
            joined = ",".join(values) if option.values == MANY else " ".join(values)
            line.options[name] = joined
            if (ours := option_named(name)) is not None:
                _carry_wrapper(line, ours, name, values)
            line.words += [f"{name}={joined}"] if equals else [name, *([joined] if values else [])]
    _take_range(line, declared)
    return line


def _take_range(line: OldLine, declared: Mapping[str, Old]) -> None:
    """Take two days by position as the range: older forms of the scripts had no options
    for it.
    """
    names = ("--start_date", "--end_date")
    if (
        all(name in declared and name not in line.options for name in names)
        and len(line.positional) == len(names)
        and all(is_day(word) for word in line.positional)
    ):
        line.options |= dict(zip(names, line.positional, strict=True))
        line.words += [word for pair in zip(names, line.positional, strict=True) for word in pair]
        line.positional = []


def _carry_wrapper(line: OldLine, ours: Option, name: str, values: Sequence[str]) -> None:
    if ours.metavar is None or values:
        line.wrapper += [name, *values]


def _find(name: str, declared: Mapping[str, Old]) -> tuple[str, Old] | None:
    """Return an option by its name, or by the beginning of it, as argparse takes it."""
    if name in declared:
        return name, declared[name]
    matches = [option for option in declared if option.startswith(name)] if len(name) > 4 else []
    return (matches[0], declared[matches[0]]) if len(matches) == 1 else None


def _values(
    script: str, name: str, count: int, value: str | None, remaining: list[str]
) -> list[str]:
    """Take the values of an option from the words behind it. Raises UsageError (2)."""
    if count == 0:
        if value is not None:
            raise UsageError(f"{name} takes no value", found=f"{name}={value}")
        return []
    values = [] if value is None else [value]
    while remaining and (count == MANY or len(values) < count):
        if remaining[0].startswith("--"):
            break
        values.append(remaining.pop(0))
    if not values or len(values) < count:
        lacking = f"{count} values" if count > 1 else "a value"
        raise UsageError(f"{name} of {script}.py needs {lacking}")
    if count != MANY:
        return values
    parts = (part.strip() for value in values for part in value.split(","))
    return [part for part in parts if part]


def _take_other(
    line: OldLine, word: str, remaining: list[str], of_job: set[str], declared: Mapping[str, Old]
) -> None:
    """Take an option that the script does not declare: one of run_spark, one of the job
    here, or one that nobody knows, which is refused.
    """
    name, equals, value = word.partition("=")
    option = option_named(name)
    has_value = bool(remaining) and not remaining[0].startswith("-")
    if option is not None:
        values = (
            []
            if option.metavar is None
            else [value]
            if equals
            else [remaining.pop(0)]
            if remaining
            else []
        )
        line.wrapper += [name, *values]
        line.words += [name, *values]
    elif name in of_job:
        line.words.append(word)
        if not equals and has_value and name not in ("--aggregation_schema",):
            line.words.append(remaining.pop(0))
    else:
        shown = word
        if not equals and has_value:
            shown += f" {remaining.pop(0)}"
        hint = suggestion(name, declared)
        line.refused.append(
            f"{shown}: {line.script}.py has no such option" + (f"; {hint}" if hint else "")
        )
