"""A site of a stream that reported on most of the last days and not today is told."""

from __future__ import annotations

from datetime import date, timedelta
from pathlib import Path

from cmsspark.filesystems.storage import LocalFiles, join
from cmsspark.store import staged_runs
from cmsspark.store.silent_sites import newest_stored, silent_lines, silent_sites

LAST = date(2026, 1, 31)
JOB = "dbs_eos"


def store(fout: str, day: date, *pairs: tuple[str, str]) -> None:
    """A stored day with an access for each (stream, site)."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    from cmsspark.base.schemas import stored_table

    files = LocalFiles()
    staged = staged_runs.stage(files, fout, JOB, day, lambda: None)
    names = stored_table(JOB).names
    columns = {name: pa.nulls(len(pairs), pa.string()) for name in names}
    columns["stream"] = pa.array([stream for stream, _ in pairs])
    columns["site_name"] = pa.array([site for _, site in pairs])
    path = Path(staged.table_path(JOB))
    path.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table(columns), path / "part-0.parquet")
    files.stat(join(staged.table_path(JOB), "part-0.parquet"))
    staged.tables[JOB] = {"rows": len(pairs), "schema": stored_table(JOB).fingerprint()}
    staged.commit({"partial": False})


def days(fout: str, count: int, *pairs: tuple[str, str]) -> None:
    for back in range(1, count + 1):
        store(fout, LAST - timedelta(days=back), *pairs)


CERN, FNAL = ("eos", "T2_CH_CERN"), ("eos", "T1_US_FNAL")


def test_a_site_that_reported_on_ten_of_fourteen_days_and_not_today_fell_silent(
    tmp_path: Path,
) -> None:
    days(str(tmp_path), 10, CERN, FNAL)
    store(str(tmp_path), LAST, CERN)
    assert silent_sites(str(tmp_path), JOB, LAST) == {"eos": ["T1_US_FNAL"]}
    (line,) = silent_lines(str(tmp_path), JOB, LAST)
    assert line.startswith("2026-01-31 dbs_eos: eos has no access of T1_US_FNAL, which had some")
    assert newest_stored(str(tmp_path), JOB, [LAST, LAST + timedelta(days=1)]) == LAST


def test_a_site_of_nine_days_and_a_stream_without_any_access_are_not_told(tmp_path: Path) -> None:
    days(str(tmp_path), 9, CERN, FNAL)
    store(str(tmp_path), LAST, CERN)
    assert silent_sites(str(tmp_path), JOB, LAST) == {}
    days(str(tmp_path), 12, CERN, FNAL)
    store(str(tmp_path), LAST, ("aaa", "T2_CH_CERN"))
    assert silent_sites(str(tmp_path), JOB, LAST) == {}
