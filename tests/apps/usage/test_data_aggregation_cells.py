"""``data_aggregation`` on made days, every cell and every bin against the oracle, which
shares no code with it.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from cmsspark.apps import demo
from cmsspark.base.schemas import stored_table
from cmsspark.run.log_day import run
from cmsspark.run.request import DayRequest
from cmsspark.settings.settings import Settings
from cmsspark.sources.registry import STREAMS_OF_JOBS
from tests.corpus import hostile
from tests.corpus.cases import OutOfDay
from tests.corpus.cases_avro import in_a_day
from tests.corpus.tree import Tree
from tests.oracle.catalogue import read_catalogue
from tests.oracle.count import Access, DayCount, StreamCount, count_day, partial_rows, report_rows

DAY = hostile.DAY
REPORT_KEY = ("stream", "dataset_name", "site_name", "app")
TABLES = ("data_aggregation", "partials", "site_pairs")
SUMS = ("nacc", "remote_nacc", "read_bytes", "cpu_time", "wc_time")

Rows = list[dict[str, Any]]


@dataclass(frozen=True)
class Counted:
    """A day by the job and by the oracle."""

    report: Rows
    partials: Rows
    site_pairs: Rows
    manifest: Mapping[str, Any]
    wanted: DayCount
    #: Rows of FILES without a dataset, by the oracle.
    orphans: int


def _run(
    root: Path, private: Path, engine: str, join: str, feed: str
) -> tuple[Rows, Rows, Rows, Mapping[str, Any]]:
    settings = Settings(None, None, private / "state", private / "cache")
    request = DayRequest(
        "data_aggregation",
        DAY,
        str(private / "store"),
        settings,
        root=str(root),
        max_malformed="100%",
        join=join,
        feed=feed,
        engine=engine,
        tables=TABLES,
    )
    done = run(request, log=lambda text: None)
    report, partials, pairs = (
        pq.read_table(Path(done.path) / name).to_pylist() for name in TABLES
    )
    return report, partials, pairs, done.manifest.document


def _write_demo(tree: Tree) -> None:
    demo.make(tree.root, tree.day, records=8_000, files=1_500, datasets=60, people=40)


DAYS: dict[str, tuple[Callable[[Tree], None], str, str, str]] = {
    "demo day by index": (_write_demo, "spark", "index", "auto"),
    "demo day by processes": (_write_demo, "processes", "index", "auto"),
    "hostile day by index": (hostile.write_day, "spark", "index", "auto"),
    "hostile day by processes": (hostile.write_day, "processes", "index", "auto"),
    "hostile day by shuffle join": (hostile.write_day, "spark", "shuffle", "auto"),
    "hostile day fed by Spark": (hostile.write_day, "spark", "index", "spark"),
    "legacy day by index": (hostile.write_legacy_day, "spark", "index", "auto"),
    "legacy day by processes": (hostile.write_legacy_day, "processes", "index", "auto"),
}


# The smoke set, on the other line of Spark too, has one day by either join.
SMOKE = (
    "demo day by index",
    "hostile day by index",
    "hostile day by processes",
    "hostile day by shuffle join",
)


@pytest.fixture(scope="module")
def wanted(
    tmp_path_factory: pytest.TempPathFactory,
) -> Callable[[Callable[[Tree], None]], tuple[Path, DayCount, int]]:
    """What writes a day → its folder, its count and its rows of FILES without a
    dataset; made once for all engines.
    """

    @functools.cache
    def count(write: Callable[[Tree], None]) -> tuple[Path, DayCount, int]:
        root = tmp_path_factory.mktemp("root")
        write(Tree(root, DAY))
        return root, count_day(root, DAY), read_catalogue(root, DAY).orphans

    return count


@pytest.fixture(
    scope="module",
    params=[pytest.param(day, marks=pytest.mark.smoke if day in SMOKE else ()) for day in DAYS],
)
def counted(
    request: pytest.FixtureRequest,
    tmp_path_factory: pytest.TempPathFactory,
    spark: object,
    wanted: Callable[[Callable[[Tree], None]], tuple[Path, DayCount, int]],
) -> Counted:
    write, engine, join, feed = DAYS[request.param]
    root, count, orphans = wanted(write)
    return Counted(
        *_run(root, tmp_path_factory.mktemp("private"), engine, join, feed), count, orphans
    )


def test_every_bin_is_the_oracles(counted: Counted) -> None:
    wanted = {stream: count.reconciliation() for stream, count in counted.wanted.streams.items()}
    assert counted.manifest["reconciliation"] == wanted


def test_rule_73_unmatched_records_are_in_the_manifest_by_site(counted: Counted) -> None:
    wanted = {
        stream: dict(count.unmatched_sites)
        for stream, count in counted.wanted.streams.items()
        if count.unmatched_sites
    }
    assert counted.manifest["unmatched_sites"] == wanted


def test_rule_11_bytes_that_are_set_aside_are_in_the_manifest(counted: Counted) -> None:
    wanted = {
        stream: dict(count.set_aside)
        for stream, count in counted.wanted.streams.items()
        if count.set_aside
    }
    assert counted.manifest["set_aside"] == wanted


def test_rule_11_jobs_are_in_the_manifest_each_once(counted: Counted) -> None:
    crab = counted.wanted.streams["crab"]
    assert counted.manifest["jobs_once"] == {"crab": crab.jobs_once()}


def test_every_record_of_a_file_that_is_not_in_dbs_is_under_a_prefix(counted: Counted) -> None:
    found = counted.manifest["unmatched_prefixes"]
    for stream, bins in counted.manifest["reconciliation"].items():
        if stream not in STREAMS_OF_JOBS:
            records = sum(
                bins["unmatched"][name] for name in ("user_file", "temporary", "not_in_dbs")
            )
            assert sum(count for _, count in found.get(stream, ())) == records, stream


def test_records_out_of_the_day_are_split_by_the_day_that_they_name(counted: Counted) -> None:
    wanted = {stream: dict(count.other_days) for stream, count in counted.wanted.streams.items()}
    assert counted.manifest["out_of_day_by_day"] == wanted


def test_every_cell_of_data_aggregation_is_the_oracles(counted: Counted) -> None:
    _same_rows(counted.report, counted.wanted.data_aggregation, REPORT_KEY)


def test_tables_have_the_columns_of_their_schema(counted: Counted) -> None:
    assert list(counted.report[0]) == stored_table("data_aggregation").names
    assert list(counted.partials[0]) == stored_table("partials").names
    assert set(counted.wanted.data_aggregation[0]) == set(counted.report[0])
    assert set(counted.wanted.partials[0]) == set(counted.partials[0])


def test_every_cell_of_partials_is_the_oracles_under_one_pseudonym_for_each_person(
    counted: Counted,
) -> None:
    people = _people(counted.partials, counted.wanted.partials)
    renamed = [{**row, "user": people[row["user"]]} for row in counted.partials]
    _same_rows(renamed, counted.wanted.partials, (*REPORT_KEY, "user"))


def test_rule_63_every_cell_of_site_pairs_is_the_oracles_in_order(counted: Counted) -> None:
    schema = stored_table("site_pairs")
    _same_rows(counted.site_pairs, counted.wanted.site_pairs, schema.keys)
    assert list(counted.site_pairs[0]) == schema.names
    assert counted.site_pairs == sorted(
        counted.site_pairs,
        key=lambda row: [(row[name] is not None, row[name] or "") for name in schema.keys],
    )


def test_rule_63_pairs_of_sites_add_up_to_the_accesses_of_their_stream(counted: Counted) -> None:
    of_stream = [row for row in counted.report if row["stream"] == "aaa"]
    is_capped = any(row["read_bytes"] == 2**63 - 1 for row in counted.site_pairs)
    for name in ("nacc", "remote_nacc", *(() if is_capped else ("read_bytes",))):
        assert sum(row[name] or 0 for row in counted.site_pairs) == sum(
            row[name] or 0 for row in of_stream
        )


def test_rows_of_files_that_match_nothing_are_reported(counted: Counted) -> None:
    told = counted.manifest["catalogue"]
    if counted.manifest["join"] == "index":
        assert told["orphans"] == counted.orphans


def test_partials_add_up_to_data_aggregation(counted: Counted) -> None:
    users: dict[tuple[Any, ...], set[str | None]] = {}
    accesses: dict[tuple[Any, ...], int] = {}
    for row in counted.partials:
        cell = tuple(row[name] for name in REPORT_KEY)
        users.setdefault(cell, set()).add(row["user"])
        accesses[cell] = accesses.get(cell, 0) + row["nacc"]
    for row in counted.report:
        cell = tuple(row[name] for name in REPORT_KEY)
        assert (row["nacc"], row["distinct_users"]) == (accesses[cell], len(users[cell] - {None}))


def _same_rows(found: Rows, wanted: list[dict[str, object]], key: tuple[str, ...]) -> None:
    by_key = _by_key(found, key)
    wanted_by_key = _by_key(wanted, key)
    missing, more = wanted_by_key.keys() - by_key.keys(), by_key.keys() - wanted_by_key.keys()
    assert not missing and not more, (
        f"missing: {sorted(map(repr, missing))[:5]}; too many: {sorted(map(repr, more))[:5]}"
    )
    wrong = [
        f"{cell} {name}: {by_key[cell][name]!r}, wanted {row[name]!r}"
        for cell, row in wanted_by_key.items()
        for name in row
        if by_key[cell][name] != row[name]
    ]
    assert not wrong, "\n".join(wrong[:10])


def _by_key(
    rows: list[dict[str, Any]], key: tuple[str, ...]
) -> dict[tuple[Any, ...], dict[str, Any]]:
    keyed = {tuple(row[name] for name in key): row for row in rows}
    assert len(keyed) == len(rows), "a key stands twice"
    return keyed


def _people(found: Rows, wanted: list[dict[str, Any]]) -> dict[str | None, str | None]:
    """Pseudonym → name, told by where and how much each one read. Asserts that it is one to one."""
    named, hidden = _profiles(wanted), _profiles(found)
    assert sorted(named.values()) == sorted(hidden.values())
    # People with the same numbers everywhere cannot be told apart, and then need not be.
    names: dict[object, list[str | None]] = {}
    for name, profile in sorted(named.items(), key=repr):
        names.setdefault(profile, []).append(name)
    people = {pseudonym: names[profile].pop() for pseudonym, profile in hidden.items()}
    assert (None in people) == (None in named)
    assert people.get(None) is None
    return people


def _profiles(rows: list[dict[str, Any]]) -> dict[str | None, str]:
    cells: dict[str | None, list[str]] = {}
    for row in rows:
        cells.setdefault(row["user"], []).append(
            repr([row[name] for name in (*REPORT_KEY, *SUMS)])
        )
    # Nobody's cells are told from a person's with the same numbers.
    return {user: repr((user is None, sorted(some))) for user, some in cells.items()}


def test_the_oracle_counts_a_days_cases_as_they_are_written(tmp_path: Path) -> None:
    """The cases' own expectations, added up by hand, are what the oracle counts from the folders."""
    tree = Tree(tmp_path, DAY)
    hostile.write_day(tree, records=0)
    for mutated in tmp_path.rglob("part-mutated.json"):
        mutated.unlink()
    counted = count_day(tmp_path, DAY)
    cases = [
        case
        for case in hostile.cases()
        if f"{case.stream} {case.form}" not in ("aaa raw", "cmssw avro")
    ]
    for stream, count in counted.streams.items():
        of_stream = [
            case
            for case in cases
            if case.stream == stream and (case.form != "avro" or in_a_day(case))
        ]
        of_files = [case for case in hostile.file_cases_of_a_day() if case.stream == stream]
        assert sum(count.bins.values()) == len(of_stream) + sum(
            sum(case.bins.values()) for case in of_files
        )
        matched = [case.expected for case in of_stream if isinstance(case.expected, Access)]
        assert count.bins["matched"] == len(matched) + sum(
            case.bins.get("matched", 0) for case in of_files
        )
        out = [case.expected.day for case in of_stream if isinstance(case.expected, OutOfDay)]
        assert count.other_days == {day: out.count(day) for day in set(out)}
        for name in ("write_only", "no_lfn", "user_file", "temporary", "not_in_dbs"):
            assert count.bins[name] == sum(case.expected == name for case in of_stream)


def test_a_sum_over_nothing_is_null_and_one_with_some_nulls_is_over_the_rest() -> None:
    def access(user: str | None, cpu_ms: int | None, remote: bool | None) -> Access:
        return Access("/a/b/RAW", "T1_X", "crab", user, remote, None, cpu_ms, None)

    some = StreamCount(
        accesses=[access("Bob", None, None), access(None, 1500, True), access("Bob", 1, None)]
    )
    (row,) = report_rows({"crab": some}, DAY)
    assert (row["nacc"], row["distinct_users"], row["remote_nacc"]) == (3, 1, 1)
    assert (row["read_bytes"], row["cpu_time"], row["wc_time"]) == (None, 1.501, None)
    by_user = {row["user"]: row for row in partial_rows({"crab": some}, DAY)}
    assert by_user["Bob"]["remote_nacc"] is None
    assert by_user["Bob"]["cpu_time"] == 0.001
    assert by_user[None]["cpu_time"] == 1.5
