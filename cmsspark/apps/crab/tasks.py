"""``crab_tasks``: CRAB's tasks by the day of their start. ``crab_task_jobs``: the jobs of
a period, by what their tasks asked for (rule 77).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import click

from cmsspark.apps.crab.reports import CrabDays, check_sums, find_crab_days, sum_or_null
from cmsspark.base.dates import DAY_MS
from cmsspark.base.names import DERIVED
from cmsspark.base.periods import Period
from cmsspark.base.schemas import stored_table
from cmsspark.cli.options import (
    INPUT_OPTIONS,
    output_options,
    print_outcome,
    require_store,
    store_options,
    with_sources,
)
from cmsspark.cli.period_options import allow_missing_option, needed, period_options
from cmsspark.run.period_run import run_on_days, store_period, with_period
from cmsspark.run.row_job import Made, RowInputs, RowJob, listed_rows
from cmsspark.settings import pseudonyms
from cmsspark.settings.settings import load_settings
from cmsspark.sources.registry import CRAB_PARTIALS
from cmsspark.store.own_jobs import Job, declare

if TYPE_CHECKING:
    import polars as pl
    import pyarrow as pa

    from cmsspark.dumps.row_tables import Rows
    from cmsspark.settings.settings import Settings
    from cmsspark.store.results import CurrentTable

DAYS: Final = 90
UNKNOWN: Final = "unknown"
_KEYS: Final = (
    *("day", "user", "status", "job_type", "split_algo", "role"),
    *("ignore_locality", "has_script", "wants_gpu", "partial_dataset"),
)
_FLAGS: Final = {"T": True, "F": False}
#: The member of TM_USER_CONFIG that a column is.
_MEMBERS: Final = {"wants_gpu": "requireaccelerator", "partial_dataset": "partialdataset"}


def flag(text: str | None) -> bool | None:
    """Return a flag of CRAB: T, F, or null.

    Example:
        >>> [flag(text) for text in ("T", " f ", "yes", None)]
        [True, False, None, None]
    """
    return _FLAGS.get((text or "").strip().upper())


def has_member(config: str | None, member: str) -> bool | None:
    """Return whether a JSON object says yes to a member: no if it lacks it or says so,
    null if the text is no JSON object or the member is something else.

    Example:
        >>> [has_member(text, "a") for text in ('{"a": true}', "{}", '{"a": 1}', "[]", "")]
        [True, False, None, None, None]
    """
    try:
        document = json.loads(config or "")
    except (ValueError, RecursionError):
        return None
    value = document.get(member) if isinstance(document, dict) else member
    return bool(value) if value is None or isinstance(value, bool) else None


def _task_columns(task: Mapping[str, Any]) -> dict[str, Any]:
    """Return the columns that describe a task."""
    script = task["TM_SCRIPTEXE"]
    return {
        "status": (task["TM_TASK_STATUS"] or "").upper() or UNKNOWN,
        "job_type": task["TM_JOB_TYPE"] or UNKNOWN,
        "split_algo": task["TM_SPLIT_ALGO"] or UNKNOWN,
        "role": task["TM_USER_ROLE"] or None,
        "ignore_locality": flag(task["TM_IGNORE_LOCALITY"]),
        "has_script": bool(script) and script != "None",
        **{name: has_member(task["TM_USER_CONFIG"], member) for name, member in _MEMBERS.items()},
    }


def sum_tasks(
    first_ms: int, last_ms: int, pseudonym: Callable[[str], str], rows: Rows
) -> dict[str, pa.Table]:
    """Return the number of tasks and jobs by the columns of ``crab_tasks``, and how many
    tasks start at no time of the window.
    """
    import pyarrow as pa

    from cmsspark.sources.rucio_tables import ROW_TABLES

    names = list(ROW_TABLES["TASKS"].columns)
    sums: dict[tuple[Any, ...], list[int]] = {}
    outside = dict.fromkeys(("no_start", "after_the_dump", "before_the_window"), 0)
    for row in rows.get("TASKS", ()):
        task = dict(zip(names, row, strict=True))
        start = task["TM_START_TIME"]
        if start is None or start > last_ms or start < first_ms:
            kind = "after_the_dump" if start is not None and start > last_ms else "no_start"
            outside["before_the_window" if start is not None and start < first_ms else kind] += 1
            continue
        login = task["TM_USERNAME"]
        columns = {
            "day": datetime.fromtimestamp(start // 1000, UTC).date(),
            "user": pseudonym(login) if login else None,
            **_task_columns(task),
        }
        key = tuple(columns[name] for name in _KEYS)
        counts = sums.setdefault(key, [0, 0])
        counts[0] += 1
        counts[1] += task["TM_NUM_JOBS"] or 0
    summed = [
        dict(zip((*_KEYS, "task_count", "job_count"), (*key, *counts), strict=True))
        for key, counts in sums.items()
    ]
    described = stored_table("crab_tasks").arrow()
    schema = pa.schema([described.field(name) for name in (*_KEYS, "task_count", "job_count")])
    return {
        "sums": pa.Table.from_pylist(summed, schema),
        "outside": pa.Table.from_pylist([outside]),
    }


def build(inputs: RowInputs, days: int = DAYS) -> dict[str, list[Made]]:
    """Return ``schemas/tables/crab_tasks.yaml``."""
    last_ms = inputs.t0_ms + DAY_MS
    reduce = partial(sum_tasks, last_ms - days * DAY_MS, last_ms, inputs.pseudonyms.pseudonym)
    tables = inputs.read(("TASKS",), reduce)
    cells: dict[tuple[Any, ...], dict[str, Any]] = {}
    for row in listed_rows(tables, "sums"):
        cell = cells.setdefault(
            tuple(row[name] for name in _KEYS), {**row, "task_count": 0, "job_count": 0}
        )
        cell["task_count"] += row["task_count"]
        cell["job_count"] += row["job_count"]
    outside: dict[str, int] = {}
    for row in listed_rows(tables, "outside"):
        for name, count in row.items():
            outside[name] = outside.get(name, 0) + count
    inputs.manifest["tasks_outside"] = outside
    return {"crab_tasks": list(cells.values())}


JOB: Final = RowJob(
    "crab_tasks",
    "CRAB's tasks by the day of their start: status, kind, and what they ask for",
    build,
    reads_tasks=True,
    options=(
        click.option(
            "--days",
            type=click.IntRange(1, 10_000),
            default=DAYS,
            show_default=True,
            help="Tasks that started on so many days up to that of the dump.",
        ),
    ),
    configured=lambda options: partial(build, days=options["days"]),
).declare(__name__)


# ``crab_task_jobs``: jobs of a period, whose days are stored, joined with the tasks.

_COUNTS: Final = ("job_count", "failed_job_count", "removed_job_count")
_MEASURES: Final = ("read_bytes", "cpu_ms", "wall_ms")
_DISTINCT: Final = {"block_count": "block_name", "task_count": "task", "distinct_users": "user"}
_ASKED: Final = ("ignore_locality", "wants_gpu")
_BY: Final = (*_ASKED, "data_tier")
_COLUMNS: Final = [
    *("dataset_name", *_DISTINCT.values(), *_COUNTS, *_MEASURES, "first_ms", "last_ms")
]


def choose_tasks(
    pseudonym: Callable[[str], str], names_of_jobs: frozenset[str], rows: Rows
) -> dict[str, pa.Table]:
    """Return what each of the wanted tasks asked for, by its pseudonym."""
    import pyarrow as pa

    from cmsspark.sources.rucio_tables import ROW_TABLES

    names = list(ROW_TABLES["TASKS"].columns)
    requests = []
    for row in rows.get("TASKS", ()):
        task = dict(zip(names, row, strict=True))
        # As the stored rows of jobs name it.
        name = pseudonym(f"task {task['TM_TASKNAME']}")
        if name in names_of_jobs:
            columns = _task_columns(task)
            requests.append({"task": name, **{column: columns[column] for column in _ASKED}})
    kinds = [("task", pa.string()), *((name, pa.bool_()) for name in _ASKED)]
    return {"tasks": pa.Table.from_pylist(requests, pa.schema(kinds))}


def build_jobs(days: CrabDays, tasks: pl.DataFrame, jobs: pl.DataFrame) -> pl.DataFrame:
    """Return ``schemas/tables/crab_task_jobs.yaml`` of a period. ``tasks``: what each
    asked for; ``jobs``: the stored rows of the days.
    """
    import polars as pl

    from cmsspark.counting.sums import in_seconds

    check_sums(jobs, _MEASURES)
    tiers = {
        name: DERIVED["data_tier"].derive(name)
        for name in jobs["dataset_name"].drop_nulls().unique().to_list()
    }
    tier = pl.col("dataset_name").replace_strict(tiers, default=None, return_dtype=pl.String)
    rows = jobs.with_columns(data_tier=tier).join(tasks, "task", "left")
    sums = rows.group_by(_BY).agg(
        *(pl.col(name).sum() for name in _COUNTS),
        *(
            pl.col(column).drop_nulls().n_unique().cast(pl.Int64).alias(name)
            for name, column in _DISTINCT.items()
        ),
        *(sum_or_null(name) for name in _MEASURES),
        pl.col("first_ms").min(),
        pl.col("last_ms").max(),
    )
    sums = sums.sort(_BY)
    seconds = [
        pl.Series(name, in_seconds(sums[source].fill_null(0).to_numpy())).set(
            sums[source].is_null(), None
        )
        for name, source in (("cpu_time", "cpu_ms"), ("wc_time", "wall_ms"))
    ]
    table = with_period(sums.with_columns(*seconds), days.period)
    return table.select(stored_table("crab_task_jobs").names)


def _read_tasks(
    days: CrabDays, settings: Settings, root: str | None, names_of_jobs: Iterable[str]
) -> tuple[pl.DataFrame, dict[str, Any]]:
    """Return what the tasks asked for, and entries of the manifest."""
    import polars as pl

    from cmsspark.dumps.process_transport import ProcessTransport, spill_folder
    from cmsspark.run.catalogue_snapshots import opened
    from cmsspark.run.provenance import check_unchanged, dumps_summary
    from cmsspark.run.request import JobRequest
    from cmsspark.sources.dumps import choose_task_dump
    from cmsspark.sources.layout import Layout

    files, last = days.files, max(days.partials)
    dump = choose_task_dump(files, Layout.from_settings(settings, root), last)
    key = pseudonyms.load_or_make(settings.state_dir / pseudonyms.KEY_FILE, last)
    schema = {"task": pl.String, **dict.fromkeys(_ASKED, pl.Boolean)}
    with spill_folder(settings.cache_dir) as folder:
        transport = ProcessTransport(folder, opened=partial(opened, files))
        request = JobRequest("crab_task_jobs", last, days.fout, settings, root)
        inputs = RowInputs(request, transport, files, [dump])
        reduce = partial(choose_tasks, key.pseudonym, frozenset(names_of_jobs))
        tables = inputs.read(("TASKS",), reduce)
    check_unchanged(files, [dump])
    tasks = [pl.DataFrame(schema=schema)]
    tasks += [pl.DataFrame(table.to_pylist(), schema=schema) for table in tables.get("tasks", ())]
    entries = {
        "dumps": dumps_summary([dump]),
        "rows": {"tables": {name: of.as_dict() for name, of in inputs.counts.items()}},
        "task_warnings": list(dump.warnings),
    }
    return pl.concat(tasks), entries


def store_jobs(
    period: Period,
    fout: str,
    settings: Settings,
    root: str | None = None,
    *,
    allow_missing: bool = False,
    log: Callable[[str], None] | None = None,
) -> CurrentTable:
    """Make ``crab_task_jobs`` of a period. Raises as
    :func:`cmsspark.run.period_run.run_on_days`, and InputMissing (66) or NotReady (75)
    without a dump of tasks.
    """
    import polars as pl

    begun = run_on_days(
        settings, fout, "crab_task_jobs", period, log, find_crab_days, allow_missing=allow_missing
    )
    with begun as (run_context, days):
        key_id = days.key_id()
        jobs = pl.concat(
            [
                rows.with_columns(pl.col(pl.Categorical).cast(pl.String))
                for _, rows in days.rows(_COLUMNS)
            ]
        )
        days.check_users(jobs["user"].unique().to_list())
        names = jobs["task"].drop_nulls().unique().to_list()
        tasks, entries = _read_tasks(days, settings, root, names)
        rows = build_jobs(days, tasks, jobs)
        missing = len(set(names) - set(tasks["task"].to_list()))
        entries["tasks"] = {"of_jobs": len(names), "not_in_dump": missing}
        return store_period(
            run_context,
            days,
            {"crab_task_jobs": rows},
            CRAB_PARTIALS,
            pseudonym_key_id=key_id,
            **entries,
        )


def _jobs_command() -> click.Command:
    def command(
        period: Period | None,
        fout: str | None,
        settings_file: str | None,
        as_json: bool,
        allow_missing: bool,
        root: str | None,
        source: Any,
    ) -> None:
        settings, chosen = with_sources(load_settings(settings_file), source), needed(period)
        store = require_store(fout, settings)
        print_outcome(
            JOBS.name,
            chosen,
            as_json,
            lambda: store_jobs(chosen, store, settings, root, allow_missing=allow_missing),
        )

    decorated: Callable[..., Any] = store_options(output_options(command))
    for option in INPUT_OPTIONS:
        decorated = option(decorated)
    about = f"{JOBS.about}. Exit codes: cmsspark help exit-codes."
    return click.command(JOBS.name, help=about)(period_options(allow_missing_option(decorated)))


JOBS: Final = Job(
    "crab_task_jobs",
    "CRAB's jobs of a period by what their tasks asked for: any site, GPUs",
    ("crab_task_jobs",),
    needs_spark=False,
    of_periods=True,
    module=__name__,
)
declare(JOBS, _jobs_command)
