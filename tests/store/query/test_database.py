"""SQL over a store: each view holds the current runs, and reads no more than it needs."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from datetime import date, timedelta
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from cmsspark.apps.demo.narration import store_day
from cmsspark.apps.usage import period
from cmsspark.base.errors import CmssparkError, DataError, NotReady, UsageError
from cmsspark.base.periods import Period
from cmsspark.base.schemas import stored_table
from cmsspark.filesystems.storage import LocalFiles, RangeFile
from cmsspark.settings.settings import load_settings
from cmsspark.store.part_files import LocalPart, StoredPart
from cmsspark.store.query import table_views
from cmsspark.store.query.database import DAYS, Database, mentioned
from cmsspark.store.query.stored_parts import tables
from tests.run.partial_days import partial, store_table
from tests.store.query.stores import FIRST, HISTORY, KEY, days, make_store

TYPES = {
    "string": "VARCHAR",
    "long": "BIGINT",
    "int": "INTEGER",
    "double": "DOUBLE",
    "date": "DATE",
    "boolean": "BOOLEAN",
}


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The days whose files queries open, once for each opening."""
    seen: list[str] = []
    init = LocalPart.__init__

    def watched(self: LocalPart, part: StoredPart) -> None:
        seen.append(part.path.split("/data_aggregation/")[1].split("/")[0])
        init(self, part)

    monkeypatch.setattr(LocalPart, "__init__", watched)
    return seen


def apart(row: dict[str, Any]) -> dict[str, Any]:
    """A stored row as queries see it: counts of jobs in columns of their own."""
    is_job = row["stream"] == "condor"
    counts = {
        **{"accesses": row["nacc"], "jobs": row["nacc"], "remote_nacc": row["remote_nacc"]},
        **{"read_bytes": row["read_bytes"], "job_read_bytes": row["read_bytes"]},
    }
    counts = {
        name: value if name.startswith("job") == is_job else None for name, value in counts.items()
    }
    return {name: value for name, value in row.items() if name != "nacc"} | counts


def test_a_view_has_the_rows_of_all_days(database: Database) -> None:
    schema = stored_table("partials")
    wanted = [apart(row) for day in days(7) for row in HISTORY.partials(day, schema).to_pylist()]
    keys = ("day", "stream", "dataset_name", "site_name", "app", "user")
    order = ", ".join(f'"{key}" nulls first' for key in keys)
    rows = database.query(f"select * from partials order by {order}").dicts
    assert rows == sorted(
        wanted, key=lambda row: tuple((row[key] is not None, row[key]) for key in keys)
    )


@pytest.mark.parametrize("name", list(tables()))
def test_columns_have_their_types_where_nothing_is_stored(name: str, tmp_path: Path) -> None:
    with Database(str(tmp_path / "none")) as database:
        described = database.query(f"describe {name}").rows
        columns = database.views[name].columns
        assert [row[:2] for row in described] == [
            (column.name, TYPES[column.type]) for column in columns
        ]
        assert database.query(f"select * from {name}").names == [column.name for column in columns]
        assert database.query(f"select count(*) from {name}").rows == [(0,)]
        assert database.query(f"select * from {DAYS}").rows == []


def test_the_current_run_of_a_day_counts_and_no_other(tmp_path: Path) -> None:
    store = make_store(tmp_path, 2)
    again = HISTORY.partials(FIRST + timedelta(days=100), stored_table("partials")).slice(0, 10)
    with Database(store) as database:
        assert database.query("select count(*) from partials").rows == [(600,)]
        store_day(HISTORY, store, KEY.key_id, FIRST, again)
        assert database.query("select count(*) from partials").rows == [(310,)]
        assert database.query(
            f"select row_count from {DAYS} where table_name = 'partials' order by day"
        ).rows == [(10,), (300,)]


def test_days_that_are_stored_meanwhile_are_there(tmp_path: Path) -> None:
    with Database(str(tmp_path)) as database:
        assert database.days() == []
        make_store(tmp_path, 2)
        assert database.days() == days(2)
        assert database.query("select count(distinct day) from data_aggregation").rows == [(2,)]


def test_a_list_of_runs_is_used_again_as_long_as_it_may(tmp_path: Path) -> None:
    with Database(str(tmp_path), max_age_s=3600) as database:
        assert database.days() == []
        make_store(tmp_path, 1)
        assert database.days() == []
        database.refresh(force=True)
        assert database.days() == days(1)


@pytest.mark.parametrize(
    ("condition", "wanted"),
    [
        ("day = '2026-01-07'", [7]),
        ("day between date '2026-01-06' and date '2026-01-08'", [6, 7, 8]),
        ("day in ('2026-01-05', '2026-01-11')", [5, 11]),
        ("day = '2026-01-05' or day = '2026-01-06'", [5, 6]),
        ("day >= '2026-01-10' and accesses > 0", [10, 11]),
        ("date_trunc('week', day) = date '2026-01-12'", []),
        ("dayname(day) = 'Sunday'", [11]),
        ("cast(day as varchar) like '%-09'", [9]),
        ("day > (select date '2026-01-10')", [11]),
        ("day in (select d from (values (date '2026-01-08')) as v(d))", [8]),
        ("day < '2020-01-01'", []),
    ],
)
def test_days_are_left_out_before_their_files_open(
    database: Database, opened: list[str], condition: str, wanted: list[int]
) -> None:
    rows = database.query(f"select distinct day from partials where {condition} order by day").rows
    assert [day.day for (day,) in rows] == wanted
    assert {int(day[-2:]) for day in opened} == set(wanted)


def test_a_join_leaves_out_days(database: Database, opened: list[str]) -> None:
    sql = "select count(*) from partials join (values (date '2026-01-06')) as v(d) on day = d"
    assert database.query(sql).rows == [(300,)]
    assert set(opened) == {"2026-01-06"}


def test_parameters_fill_a_query(database: Database) -> None:
    sql = "select count(*) from partials where day = ? and stream = ?"
    by_position = database.query(sql, [FIRST, "aaa"]).rows
    by_name = database.query(
        sql.replace("= ?", "= $d", 1).replace("= ?", "= $s"), {"d": FIRST, "s": "aaa"}
    ).rows
    assert by_position == by_name
    assert by_position[0][0] > 0
    assert database.query("select ? as hostile", ["'; drop view partials; --"]).rows == [
        ("'; drop view partials; --",)
    ]


def test_sums_of_whole_numbers_are_whole_numbers(database: Database) -> None:
    result = database.query(
        "select sum(coalesce(accesses, jobs)) as n, sum(cpu_time) as cpu from data_aggregation"
    )
    assert [str(kind) for kind in result.table.schema.types] == ["int64", "double"]
    wanted = [
        row["nacc"]
        for day in days(7)
        for row in HISTORY.partials(day, stored_table("partials")).to_pylist()
    ]
    assert result.rows[0][0] == sum(wanted)


def test_more_rows_than_wanted_are_never_made(database: Database) -> None:
    result = database.query("select * from range(1000000000000)", max_rows=5)
    assert (result.table.num_rows, result.is_truncated) == (5, True)
    assert not database.query("select * from range(5)", max_rows=5).is_truncated


def test_a_query_ends_after_its_time_and_the_next_one_works(database: Database) -> None:
    endless = "select count(*) from range(10000000000000) as t(i) where i % 7 = 3"
    with pytest.raises(NotReady, match=r"longer than 0\.2 s"):
        database.query(endless, max_seconds=0.2)
    assert database.query("select 1", max_seconds=30).rows == [(1,)]


def test_threads_ask_at_once_while_the_store_grows(tmp_path: Path) -> None:
    store = make_store(tmp_path, 2)
    with Database(store, threads=2) as database, ThreadPoolExecutor(8) as pool:
        growing = threading.Thread(target=make_store, args=(tmp_path, 6))
        growing.start()
        sql = "select day, count(*) from partials group by day"
        counts = list(pool.map(lambda _: dict(database.query(sql).rows), range(24)))
        growing.join()
        assert all(set(count.values()) == {300} and len(count) >= 2 for count in counts)
        assert len(database.query(sql).rows) == 6


def test_columns_of_one_name_are_all_there(database: Database) -> None:
    found = database.query("select 1 as a, 2 as a, 3 as a_1, 4 as b")
    assert found.dicts == [{"a": 1, "a_2": 2, "a_1": 3, "b": 4}]


def test_tables_with_a_row_for_each_person_can_be_left_out(week: str) -> None:
    with Database(week, is_private=False) as database:
        assert "partials" not in [table.name for table in database.tables]
        assert "partials" not in [row[0] for row in database.query("show tables").rows]
        assert "partials" not in str(database.query(f"select * from {DAYS}").rows)
        for sql in (
            "from partials",
            "from data_aggregation.partials",
            "from read_parquet('cmsstore://data_aggregation.partials/*')",
        ):
            with pytest.raises(CmssparkError):
                database.query(sql)
        with pytest.raises(
            UsageError, match="partials has a row for each person and is left out here"
        ):
            database.query("select count(*) from Partials")


def part_files(store: str, day: date, table: str = "partials") -> list[Path]:
    return sorted(Path(store).glob(f"data_aggregation/{day}/runs/*/{table}/part-*"))


@pytest.mark.parametrize(
    "damage", ["cut", "garbage", "empty", "gone", "no manifest", "no CURRENT run", "not JSON"]
)
def test_a_damaged_day_fails_its_own_queries_only(tmp_path: Path, damage: str) -> None:
    store = make_store(tmp_path, 3)
    bad = days(3)[0]
    (part,) = part_files(store, bad)
    content = part.read_bytes()
    folder = Path(store) / "data_aggregation" / str(bad)
    if damage == "cut":
        part.write_bytes(content[: len(content) // 2])
    elif damage == "garbage":
        part.write_bytes(content[:100] + b"\0" * (len(content) - 200) + content[-100:])
    elif damage == "empty":
        part.write_bytes(b"")
    elif damage == "gone":
        part.unlink()
    elif damage == "no manifest":
        (part.parent.parent / "manifest.json").unlink()
    else:
        (folder / "CURRENT").write_text('{"run": "gone"}' if damage == "no CURRENT run" else "{")
    with Database(store) as database:
        assert database.query(
            f"select count(*), sum(accesses) > 0 from partials where day > '{bad}'"
        ).rows == [(600, True)]
        with pytest.raises(DataError) as raised:
            database.query(
                f"select sum(accesses), count(distinct dataset_name) from partials where day = '{bad}'"
            )
        assert str(bad) in str(raised.value) and (
            "again" in str(raised.value) or "run_spark" in str(raised.value)
        )
        damaged = database.query(
            f"select is_damaged from {DAYS} where table_name = 'partials' order by day"
        ).rows
        assert damaged == [(damage != "garbage",), (False,), (False,)]


@pytest.mark.parametrize("name", ["part", "manifest"])
def test_a_damaged_day_whose_files_were_put_back_is_whole_again(tmp_path: Path, name: str) -> None:
    """The run is the same as before: what was known of it was kept until the end of the process."""
    store = make_store(tmp_path, 2)
    (part,) = part_files(store, FIRST)
    gone = part if name == "part" else part.parent.parent / "manifest.json"
    content = gone.read_bytes()
    with Database(store) as database:
        gone.unlink()
        with pytest.raises(DataError):
            database.query("select count(*), sum(accesses) from partials")
        gone.write_bytes(content)
        assert database.query("select count(*) from partials").rows == [(600,)]
        assert database.query(f"select count(*) from {DAYS} where is_damaged").rows == [(0,)]


def test_files_that_prune_removed_meanwhile_are_looked_up_again(tmp_path: Path) -> None:
    store = make_store(tmp_path, 1)
    with Database(store, max_age_s=3600) as database:
        assert database.query("select count(*) from partials").rows == [(300,)]
        (old,) = part_files(store, FIRST)
        again = HISTORY.partials(FIRST + timedelta(days=9), stored_table("partials")).slice(0, 7)
        store_day(HISTORY, store, KEY.key_id, FIRST, again)
        old.unlink()
        assert database.query("select count(*), sum(accesses) > 0 from partials").rows == [
            (7, True)
        ]


def test_days_in_csv_and_of_an_older_schema_are_read_as_todays(tmp_path: Path) -> None:
    store = make_store(tmp_path, 2)
    (part,) = part_files(store, FIRST)
    rows = pq.read_table(part)
    older = rows.drop_columns(["wc_time"]).set_column(6, "nacc", rows["nacc"].cast("int32"))
    pq.write_table(older, part)
    manifest = part.parent.parent / "manifest.json"
    told = json.loads(manifest.read_text())
    told["tables"]["partials"] |= {
        "schema": "an older one",
        "bytes": part.stat().st_size,
        "sha256": None,
    }
    manifest.write_text(json.dumps(told))
    (other,) = part_files(store, days(2)[1])
    text = other.with_suffix(".csv")
    frame = pq.read_table(other)
    lines = [",".join(frame.column_names)]
    lines += [
        ",".join("" if v is None else str(v) for v in row.values()) for row in frame.to_pylist()
    ]
    text.write_text("\n".join(lines) + "\n")
    other.unlink()
    manifest = other.parent.parent / "manifest.json"
    told = json.loads(manifest.read_text())
    told["tables"]["partials"] |= {"format": "csv", "bytes": text.stat().st_size, "sha256": None}
    manifest.write_text(json.dumps(told))
    with Database(store) as database:
        count = "sum(coalesce(accesses, jobs))"
        counted = database.query(
            f"select day, count(*), count(wc_time) > 0, {count} from partials group by 1 order by 1"
        )
        wanted = [
            sum(HISTORY.partials(day, stored_table("partials"))["nacc"].to_pylist())
            for day in days(2)
        ]
        assert counted.rows == [
            (days(2)[0], 300, False, wanted[0]),
            (days(2)[1], 300, True, wanted[1]),
        ]


def test_partial_days_are_known_with_their_reason(tmp_path: Path) -> None:
    store = make_store(tmp_path, 3)
    store_day(HISTORY, store, KEY.key_id, FIRST, missing_streams=["crab"], partial=True)
    streams = ["aaa", "eos", "cmssw"]
    store_day(HISTORY, store, KEY.key_id, days(3)[1], streams=streams)
    (whole,) = Path(store).glob(f"data_aggregation/{days(3)[2]}/runs/*/manifest.json")
    lacking = sorted({*json.loads(whole.read_text())["streams"]} - {*streams})
    with Database(store) as database:
        sql = f"select day, is_partial, partial_reason from {DAYS} where table_name = 'data_aggregation' order by day"
        assert database.query(sql).rows == [
            (days(3)[0], True, "without crab"),
            (days(3)[1], True, f"without {', '.join(lacking)}"),
            (days(3)[2], False, None),
        ]


def test_periods_are_one_view_by_their_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CMSSPARK_STATE_DIR", str(tmp_path / "state"))
    store = make_store(tmp_path / "store", 7)
    period.run(
        Period(FIRST, FIRST + timedelta(days=7)), store, load_settings(), log=lambda _: None
    )
    period.run(
        Period(FIRST, FIRST + timedelta(days=2)), store, load_settings(), log=lambda _: None
    )
    with Database(store) as database:
        sql = "select period, first_day, last_day, sum(accesses) from period_aggregation group by all order by period"
        rows = database.query(sql).rows
        assert [row[:3] for row in rows] == [
            ("2026-01-05--2026-01-06", days(2)[0], days(2)[1]),
            ("2026-W02", days(7)[0], days(7)[6]),
        ]
        (total,) = database.query("select sum(accesses) from data_aggregation").rows[0]
        assert rows[1][3] == total
        (stored,) = database.query(
            f"select period, day from {DAYS} where period = '2026-W02'"
        ).rows
        assert stored == ("2026-W02", None)


def test_hostile_names_in_a_store_are_only_names(tmp_path: Path) -> None:
    name = "/A'; drop view partials; --/<script>alert(1)</script>/AOD"
    rows = [partial(FIRST, dataset_name=name, user="k' or 1=1")]
    store_table(tmp_path, "data_aggregation", "partials", FIRST, rows, run="r'1; %2F..", parts=1)
    (tmp_path / "data_aggregation" / "2026-01-06'").mkdir()
    (tmp_path / "data_aggregation" / "notes.txt").write_text("x")
    with Database(str(tmp_path)) as database:
        assert database.query('select dataset_name, "user" from partials').rows == [
            (name, "k' or 1=1")
        ]
        assert database.query(
            "select count(*) from partials where dataset_name = ?", [name]
        ).rows == [(1,)]


def test_a_remote_part_reads_only_the_ranges_that_are_asked_for(tmp_path: Path) -> None:
    path = tmp_path / "part"
    path.write_bytes(bytes(range(256)) * 40)
    asked: Counter[tuple[int, int]] = Counter()

    def read_range(offset: int, count: int) -> bytes:
        asked[offset, count] += 1
        return LocalFiles().read_range(str(path), offset, count)

    remote = RangeFile(10_240, read_range)
    assert remote.seek(-4, 2) == 10_236
    assert remote.read() == bytes([252, 253, 254, 255])
    assert (remote.seek(10), remote.read(3), remote.tell()) == (10, b"\n\x0b\x0c", 13)
    assert remote.seek(99_999) and remote.read(5) == b""
    assert set(asked) == {(10_236, 4), (10, 3)}
    local = LocalPart(StoredPart(str(path), False, 10_240, 0))
    assert (local.seek(10), local.read(3)) == (10, b"\n\x0b\x0c")
    local.close()
    local.close()


def test_a_query_names_the_tables_that_it_may_read() -> None:
    names = ["data_aggregation", "partials", "phedex"]
    assert mentioned("select * from PARTIALS p", names) == ["partials"]
    assert mentioned("show tables", names) == names
    assert mentioned("from query_table('part' || 'ials')", names) == names
    assert mentioned("from duckdb_views() where view_name != 'partials'", names) == names
    assert mentioned("select * from a_table_of_no_known_name", names) == names
    assert mentioned("select 1", names) == []


def test_what_lists_tables_lists_all_of_them(tmp_path: Path) -> None:
    with Database(str(tmp_path)) as database:
        # One view is there already.
        database.query("from partials limit 1")
        listed = database.query(
            "select schema_name || '.' || view_name as name from duckdb_views() where not internal"
        )
    assert {row[0].removeprefix("main.") for row in listed.rows} == {
        *database.views,
        *table_views.VIEWS,
    }


def test_a_view_of_costs_has_the_tables_that_it_is_made_of(tmp_path: Path) -> None:
    with Database(str(tmp_path)) as database:
        for name in table_views.VIEWS:
            assert database.query(f"from {name}").rows == []
        joined = database.query(
            "select count(*) from partials join data_aggregation using (day) where false"
        )
        assert joined.rows == [(0,)]


def test_without_the_extra_a_query_says_what_to_install() -> None:
    """A bare environment has neither DuckDB nor fsspec."""
    script = (
        "import sys\n"
        "sys.modules['duckdb'] = sys.modules['fsspec'] = None\n"
        "from cmsspark.main import main\n"
        "sys.argv[1:] = ['sql', 'select 1', '--fout', '.']\n"
        "main()\n"
    )
    ended = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=False
    )
    assert ended.returncode == 2, ended.stderr
    assert "SQL needs DuckDB and fsspec" in ended.stderr
