"""Dumps in odd forms: the rows are those of the plain dump, or the run says what it
did not use (rule 70).
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from datetime import date
from pathlib import Path
from typing import Any, Final

import pyarrow.parquet as pq
import pytest

from cmsspark.apps.replicas import dataset_last_access, dbs_events, replica_jobs
from cmsspark.apps.replicas.replica_jobs import DBS_RUCIO, RUCIO_DAILY
from cmsspark.base.errors import DataError
from cmsspark.run import dump_day
from cmsspark.run.dump_day import DumpJob
from cmsspark.run.request import JobRequest
from cmsspark.settings.settings import Settings, load_settings
from tests.apps.jobs_cost.cells import count
from tests.apps.usage.test_rucio_jobs import write_dbs
from tests.corpus import costs
from tests.corpus import rucio as corpus
from tests.corpus.jobs import job as job_line
from tests.corpus.tree import AWG, Tree

DAY: Final = date(2026, 1, 15)
DAY_MS: Final = 1_768_435_200_000
DATASET: Final = "/A/B-v1/AOD"
FILES: Final = 40
Rows = dict[str, list[dict[str, Any]]]
Change = Callable[[Any, int], Any]

RUCIO: Final[Rows] = {
    "RSES": [{"ID": corpus.rse_id("T2_X"), "RSE": "T2_X", "RSE_TYPE": "DISK"}],
    "REPLICAS": [
        {
            "RSE_ID": corpus.rse_id("T2_X"),
            "SCOPE": "cms",
            "NAME": f"/store/{number}",
            "STATE": "A",
            "BYTES": 100 + number,
            "CREATED_AT": DAY_MS + number,
            "ACCESSED_AT": DAY_MS + number,
        }
        for number in range(FILES)
    ],
    "CONTENTS": [
        {
            "SCOPE": "cms",
            "NAME": f"{DATASET}#{number % 20}",
            "CHILD_SCOPE": "cms",
            "CHILD_NAME": f"/store/{number}",
            "DID_TYPE": "D",
            "CHILD_TYPE": "F",
            "BYTES": 100 + number,
        }
        for number in range(FILES)
    ],
    "DIDS": [
        {
            "SCOPE": "cms",
            "NAME": f"/store/{number}",
            "DID_TYPE": "F",
            "ACCESSED_AT": DAY_MS + number,
        }
        for number in range(FILES)
    ],
}
DBS: Final[Rows] = {
    "DATASETS": [
        {
            "dataset_id": 1,
            "dataset": DATASET,
            "is_dataset_valid": 1,
            "dataset_access_type_id": 1,
            "creation_date": 1_600_000_000,
        }
    ],
    "BLOCKS": [
        {
            "block_id": number,
            "block_name": f"{DATASET}#{number}",
            "dataset_id": 1,
            "creation_date": 1_600_000_000,
        }
        for number in range(20)
    ],
    "FILES": [
        {
            "logical_file_name": f"/store/{number}",
            "file_id": number,
            "is_file_valid": 1,
            "dataset_id": 1,
            "block_id": number % 20,
            "event_count": 10,
            "file_size": 100 + number,
        }
        for number in range(FILES)
    ],
    "DATASET_ACCESS_TYPES": [{"dataset_access_type_id": 1, "dataset_access_type": "VALID"}],
    "RELEASE_VERSIONS": [],
    "ACQUISITION_ERAS": [],
    "PROCESSING_ERAS": [],
    "PHYSICS_GROUPS": [],
    "DATASET_OUTPUT_MOD_CONFIGS": [{"dataset_id": 1, "output_mod_config_id": 1}],
    "OUTPUT_MODULE_CONFIGS": [],
}

#: Other forms of columns: what a value becomes, by its row.
CODES: Final[dict[str, Change]] = {
    "as the enumeration names it": lambda value, row: {
        "A": "AVAILABLE",
        "F": "FILE",
        "D": "DATASET",
        "C": "CONTAINER",
    }.get(value, value.upper()),
    "in lower case": lambda value, row: value.lower(),
    "in upper case": lambda value, row: value.upper(),
    "padded": lambda value, row: value + " " * 9,
    "of a language": lambda value, row: f"E.{value}",
    "otherwise": lambda value, row: f"<{value}>",
    "otherwise for most": lambda value, row: f"<{value}>" if row % 5 else value,
    "empty": lambda value, row: "",
    "null": lambda value, row: None,
}
NUMBERS: Final[dict[str, Change]] = {
    "seconds for ms, ms for s": lambda value, row: (
        value // 1000 if value > 10**11 else value * 1000
    ),
    "microseconds": lambda value, row: value * 1000 if value > 10**11 else value * 10**6,
    "negative": lambda value, row: -value,
    "-1": lambda value, row: -1,
    "-1 for some": lambda value, row: -1 if row % 7 == 0 else value,
    "null": lambda value, row: None,
}
#: Forms of numbers that are no times.
COUNTS: Final = {name: NUMBERS[name] for name in ("negative", "-1", "-1 for some", "null")}
_FORMS: Final = (
    *((RUCIO, "REPLICAS", column, CODES) for column in ("STATE", "SCOPE")),
    *((RUCIO, "CONTENTS", column, CODES) for column in ("SCOPE", "DID_TYPE", "CHILD_TYPE")),
    (RUCIO, "DIDS", "DID_TYPE", CODES),
    *((RUCIO, "REPLICAS", column, NUMBERS) for column in ("CREATED_AT", "ACCESSED_AT")),
    (RUCIO, "DIDS", "ACCESSED_AT", NUMBERS),
    (DBS, "BLOCKS", "creation_date", NUMBERS),
    (DBS, "BLOCKS", "dataset_id", COUNTS),
    *((DBS, "FILES", column, COUNTS) for column in ("event_count", "file_size", "dataset_id")),
    (DBS, "DATASETS", "creation_date", NUMBERS),
)
#: Jobs that read a column.
_JOBS: Final = {
    "REPLICAS": (RUCIO_DAILY, DBS_RUCIO),
    "CONTENTS": (DBS_RUCIO,),
    "DIDS": (dataset_last_access.JOB,),
    "BLOCKS": (replica_jobs.JOB,),
    "FILES": (dbs_events.JOB, replica_jobs.JOB),
    "DATASETS": (dbs_events.JOB,),
}


def forms() -> Iterator[tuple[str, Rows, str, str, Change]]:
    for rows, table, column, changes in _FORMS:
        for name, change in changes.items():
            if (column, name) not in NO_FORM:
                yield f"{table}.{column} {name}", rows, table, column, change


#: Nothing to tell: null says that a value is not known, and where nobody gave it.
NO_FORM: Final = {(column, "null") for column in ("ACCESSED_AT", "CREATED_AT", "event_count")} | {
    (column, "null") for column in ("file_size", "creation_date")
}


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    written = tmp_path / "cmsspark.yaml"
    written.write_text(f"state_dir: {tmp_path}/state\ncache_dir: {tmp_path}/cache\n")
    return load_settings(str(written))


def write(root: Path, rows: Rows) -> None:
    """The dump of Rucio or of DBS."""
    if "RSES" in rows:
        shutil.rmtree(root / AWG / "rucio", ignore_errors=True)
        corpus.write_dump(root / AWG / "rucio/2026-01-16", rows)
    else:
        shutil.rmtree(root / AWG / "dbs", ignore_errors=True)
        write_dbs(root / AWG / "dbs/PROD_GLOBAL/2026-01-16", rows)


def run(job: DumpJob, root: Path, out: Path, settings: Settings) -> tuple[Any, tuple[str, ...]]:
    request = JobRequest(job.name, DAY, str(out), settings, str(root), engine="processes")
    done = dump_day.run(job, request, lambda _: None)
    assert done.manifest.document["rows_used"]
    # Of what is read here: that dataset_rses is not stored is no word about these rows.
    warnings = tuple(text for text in done.manifest.warnings if "dataset_rses" not in text)
    return pq.read_table(Path(done.path) / job.name).to_pylist(), warnings


def test_of_a_dump_in_an_odd_form_all_rows_count_or_the_run_says_so(
    tmp_path: Path, settings: Settings
) -> None:
    root = tmp_path / "root"
    write(root, RUCIO)
    write(root, DBS)
    plain = {
        job.name: run(job, root, tmp_path / "plain", settings)
        for jobs in _JOBS.values()
        for job in jobs
    }
    assert [name for name, (rows, warnings) in plain.items() if warnings or not rows] == []
    silent, told, tried = [], set(), 0
    for name, dump, table, column, change in forms():
        changed = [
            row | {column: change(row[column], number)} for number, row in enumerate(dump[table])
        ]
        write(root, dump | {table: changed})
        for job in _JOBS[table]:
            tried += 1
            try:
                rows, warnings = run(job, root, tmp_path / "out", settings)
            except DataError as error:
                assert error.exit_code == 65
                told.add(name)
            else:
                if rows != plain[job.name][0] and not warnings:
                    silent.append(f"{job.name}: {name}")
                if warnings:
                    told.add(name)
                assert not any(
                    isinstance(value, int) and value < 0 for row in rows for value in row.values()
                )
        write(root, dump)
    assert silent == [], "\n".join(silent)
    assert tried > 100
    assert "REPLICAS.STATE as the enumeration names it" not in told
    assert {"REPLICAS.SCOPE in upper case", "CONTENTS.DID_TYPE padded"}.isdisjoint(told)
    assert {"FILES.event_count -1", "BLOCKS.creation_date microseconds"} <= told


def test_a_day_of_jobs_in_other_letters_is_65(tmp_path: Path) -> None:
    lines = [
        job_line(
            {**costs.COSTS, "GlobalJobId": f"j{number}", "Status": "COMPLETE"},
            {"timestamp": 1_781_481_600_000},
        )
        for number in range(1200)
    ]
    day = date(2026, 6, 15)
    Tree(tmp_path, day).write_lines("condor", lines, parts=1)
    with pytest.raises(DataError, match=r"(?s)none of 1,200 rows is used.*1,200 not_final"):
        count(tmp_path, day, tmp_path / "fout")
