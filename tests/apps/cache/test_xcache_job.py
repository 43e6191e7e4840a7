"""``xcache``: the sums of XCache's records by site, by hand (rule 48)."""

from __future__ import annotations

import json
from datetime import date
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner

from cmsspark.apps.cache import xcache_job
from cmsspark.base.errors import DataError, InputMissing, NotReady, UsageError
from cmsspark.base.schemas import stored_table
from cmsspark.settings.settings import Settings

DAY = date(2026, 1, 15)
NOON_MS = 1_768_478_400_000


def _line(*, is_flat: bool = False, stamp: int = NOON_MS, **values: Any) -> str:
    record = {
        "file_path": "/store/a",
        "server_hostname": "xc1",
        "site": "T2_US_UCSD",
        "size": 1000,
        "access_count": 2,
        "bytes_hit_cache": 70,
        "bytes_miss_cache": 30,
        "bytes_bypass_cache": 5,
        "bytes_to_disk": 40,
        "bytes_by_prefetch": 10,
        **values,
    }
    metadata = {"timestamp": stamp, "type": "metric"}
    return json.dumps(
        {**record, "metadata": metadata} if is_flat else {"data": record, "metadata": metadata}
    )


def _write(root: Path, *lines: str) -> None:
    folder = root / "project/monitoring/archive/cms-xrootd-cache/raw/metric/2026/01/15"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "part-00000").write_text("".join(line + "\n" for line in lines))


def _run(root: Path) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    settings = Settings(None, None, root / "state", root / "cache")
    done = xcache_job.run(
        DAY, str(root / "store"), settings, root=str(root), log=lambda text: None
    )
    table = pq.read_table(Path(done.path) / "xcache")
    assert table.schema.names == stored_table("xcache").names
    return table.to_pylist(), done.manifest.document


def test_records_are_summed_by_site(tmp_path: Path) -> None:
    _write(
        tmp_path,
        _line(),
        _line(is_flat=True, server_hostname="xc2", size=1200),
        _line(file_path="/store/b"),
        _line(site=None, bytes_hit_cache=None, bytes_by_prefetch=0.0),
        _line(site="UNKNOWN"),
        _line(stamp=NOON_MS + 86_400_000),
        _line(size="x"),
        '{"data":null}',
        '{"site":"T2"}',
    )
    rows, manifest = _run(tmp_path)
    ucsd, unknown = rows
    assert {name: ucsd[name] for name in list(ucsd)[1:-1]} == {
        "site_name": "T2_US_UCSD",
        "server_count": 2,
        "file_count": 2,
        "file_bytes": 2200,
        "close_count": 3,
        "access_count": 6,
        "hit_bytes": 210,
        "missed_bytes": 90,
        "bypass_bytes": 15,
        "remote_bytes": 135,
        "explicit_remote_bytes": 105,
    }
    assert (unknown["site_name"], unknown["close_count"], unknown["hit_bytes"]) == (
        "unknown",
        2,
        70,
    )
    assert unknown["explicit_remote_bytes"] == 80
    assert manifest["records"] == {"read": 9, "malformed": 3, "out_of_day": 1}


def test_opens_of_a_file_count_once_as_a_cache_counts_them_on(tmp_path: Path) -> None:
    _write(
        tmp_path,
        *(_line(access_count=count) for count in (7, 9, 8, None)),
        _line(server_hostname="xc2", access_count=1),
        _line(server_hostname=None, access_count=3),
    )
    rows, _ = _run(tmp_path)
    assert [(row["close_count"], row["access_count"]) for row in rows] == [(6, 9 + 1 + 3)]


def test_sites_are_those_of_rule_12(tmp_path: Path) -> None:
    names = (" T1_US_FNAL_Disk ", "T1_US_FNAL", "n/a", "-", " ", "NULL", None)
    _write(tmp_path, *(_line(site=name) for name in names))
    rows, _ = _run(tmp_path)
    assert {row["site_name"]: row["close_count"] for row in rows} == {
        "T1_US_FNAL": 2,
        "unknown": 5,
    }


@pytest.mark.parametrize(
    "line", ["5", "-1", "5\n6", "null", '"x"', "[]", "true", "1.5", "{}", "9" * 400]
)
def test_a_line_that_is_no_object_is_malformed(tmp_path: Path, line: str) -> None:
    _write(tmp_path, _line(), line)
    rows, manifest = _run(tmp_path)
    assert rows[0]["close_count"] == 1
    assert manifest["records"]["malformed"] == len(line.split("\n"))


def test_too_many_malformed_records_fail(tmp_path: Path) -> None:
    _write(tmp_path, *["x"] * 11, _line())
    with pytest.raises(DataError, match="11 of 12 records are malformed"):
        _run(tmp_path)


def test_a_missing_or_an_empty_day_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(InputMissing, match="no xcache log for 2026-01-15"):
        _run(tmp_path)
    _write(tmp_path, " ")
    with pytest.raises(NotReady):
        _run(tmp_path)


def test_the_job_prints_the_uri_of_its_result_or_its_outcome(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CMSSPARK_STATE_DIR", str(tmp_path / "state"))
    _write(tmp_path, _line())
    folder = tmp_path / "project/monitoring/archive/cms-xrootd-cache/raw/metric"
    line = [
        "--date",
        "2026-01-15",
        "--fout",
        str(tmp_path / "store"),
        "--source",
        f"xcache.metric={folder}",
    ]
    printed = CliRunner().invoke(xcache_job.command, line, catch_exceptions=False).stdout
    assert pq.read_table(printed.strip().removeprefix("file://"))["site_name"].to_pylist() == [
        "T2_US_UCSD"
    ]
    outcome = json.loads(
        CliRunner().invoke(xcache_job.command, [*line, "--json"], catch_exceptions=False).stdout
    )
    assert (outcome["state"], outcome["tables"]["xcache"]["rows"]) == ("done", 1)
    with pytest.raises(UsageError, match="stored as Parquet"):
        CliRunner().invoke(xcache_job.command, [*line, "--format", "csv"], catch_exceptions=False)
