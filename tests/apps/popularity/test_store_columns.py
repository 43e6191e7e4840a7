"""Features of datasets from stored tables: DBS, replicas; nothing of a week's Monday or later."""

from __future__ import annotations

import shutil
from datetime import date, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from cmsspark.apps.popularity.cli import command
from cmsspark.apps.popularity.dataset_catalogue import Catalogue, Snapshot
from cmsspark.apps.popularity.dataset_reads import READS_COLUMNS
from cmsspark.apps.popularity.evaluate import check_later_days
from cmsspark.apps.popularity.features import BASE_COLUMNS, STORE_COLUMNS
from cmsspark.apps.popularity.series import Series, stored_series
from cmsspark.apps.popularity.training import Label, Weeks
from cmsspark.base import errors
from cmsspark.base.periods import between, start_ms
from cmsspark.filesystems.storage import LocalFiles
from cmsspark.store import stored_days
from tests.run.partial_days import Row, partial, store_partials, store_table, user

FIRST = date(2026, 1, 5)  # a Monday
A, B, C = "/A/Run1-v1/AOD", "/B/Run1-v1/AOD", "/C/Run1-v1/RAW"
TB = 10**12


def days_of(store: Path, count: int = 28) -> None:
    for number in range(count):
        day = FIRST + timedelta(days=number)
        store_partials(
            store,
            day,
            [partial(day, dataset_name=name, nacc=number % 5 + 1) for name in (A, B, C)],
        )


def series_of(store: Path, count: int = 28) -> Series:
    period = between(FIRST, FIRST + timedelta(days=count - 1))
    return stored_series(stored_days.find_days(LocalFiles(), str(store), period))


def on(series: Series, day: int) -> dict[str, dict[str, float]]:
    """Dataset → feature → value on day number ``day``."""
    weeks = Weeks(series, Label(10))
    rows = weeks.rows(day)
    return {
        name: dict(zip(weeks.columns, row, strict=True))
        for name, row in zip(series.datasets, rows.tolist(), strict=True)
    }


def store_dbs(
    store: Path, day: date, sizes: dict[str, int], dump: date | str | None = "none", **other: Any
) -> None:
    rows = [
        {
            "day": day,
            "dataset_name": name,
            "events": size * 10,
            "file_count": size,
            "invalid_file_count": 0,
            "dataset_bytes": size * TB,
            "created_ms": start_ms(FIRST) - 9 * 86_400_000 - 1,
            "timestamp": 1,
            "release_versions": "CMSSW_10_6_8,CMSSW_9_4_1_patch1",
            **other,
        }
        for name, size in sizes.items()
    ]
    dumps = {} if dump == "none" else {"dbs": {"folder": "x", "day": str(dump) if dump else None}}
    store_table(store, "dbs_events", "dbs_events", day, rows, dumps=dumps)


def replica(day: date, name: str, site: str, kind: str = "disk", **other: Any) -> Row:
    return {
        "day": day,
        "dataset_name": name,
        "site_name": site,
        "kind": kind,
        "site_tier": site.partition("_")[0],
        "present_bytes": TB,
        "dataset_bytes": TB,
        "present_file_count": 1,
        "present_block_count": 1,
        "is_complete": True,
        "timestamp": 1,
        **other,
    }


def test_size_events_age_and_release_come_from_the_newest_table_before_the_monday(
    tmp_path: Path,
) -> None:
    days_of(tmp_path)
    store_dbs(tmp_path, FIRST + timedelta(days=2), {A: 3, B: 4})
    store_dbs(tmp_path, FIRST + timedelta(days=9), {A: 7}, events=None, release_versions=None)
    series = series_of(tmp_path)
    found = on(series, 7)
    assert found[A]["log_dbs_bytes"] == pytest.approx(np.log1p(3 * TB)) and found[A][
        "log_dbs_files"
    ] == np.log1p(3)
    assert found[A]["log_dbs_events"] == np.log1p(30) and found[A]["release"] == pytest.approx(
        10.06
    )
    assert found[A]["log_dbs_age_days"] == np.log1p(7 + 10) and found[A]["is_events_known"] == 1
    assert (found[B]["is_in_dbs"], found[C]["is_in_dbs"]) == (1, 0)
    assert [
        found[C][name]
        for name in ("log_dbs_bytes", "log_dbs_events", "log_dbs_age_days", "release")
    ] == [0] * 4
    assert on(series, 13)[A]["log_dbs_files"] == np.log1p(3), (
        "the week of the second table does not know it"
    )
    later = on(series, 14)
    assert later[A]["log_dbs_files"] == np.log1p(7) and later[B]["is_in_dbs"] == 0
    assert (later[A]["is_events_known"], later[A]["log_dbs_events"], later[A]["release"]) == (
        0,
        0,
        0,
    )
    weeks = Weeks(series, Label(10))
    assert "log_disk_copies_t1" not in weeks.columns and weeks.columns[
        : len(BASE_COLUMNS)
    ] == list(BASE_COLUMNS)


def test_a_table_counts_when_its_dumps_are_older_than_the_monday(tmp_path: Path) -> None:
    days_of(tmp_path)
    monday = FIRST + timedelta(days=14)
    store_dbs(tmp_path, FIRST + timedelta(days=5), {A: 1}, dump=FIRST + timedelta(days=6))
    # Of a Sunday, and the dump of the Monday served it.
    store_dbs(tmp_path, monday - timedelta(days=1), {A: 2}, dump=monday)
    store_dbs(tmp_path, monday - timedelta(days=2), {A: 9}, dump=None)
    series = series_of(tmp_path)
    assert [round(np.expm1(on(series, day)[A]["log_dbs_files"])) for day in (7, 14, 20, 21)] == [
        1,
        1,
        1,
        2,
    ]


def test_complete_copies_are_counted_by_tier_and_kind(tmp_path: Path) -> None:
    days_of(tmp_path)
    day = FIRST + timedelta(days=1)
    store_table(tmp_path, "dbs_phedex", "dbs_phedex", day, [replica(day, C, "T2_DE_B")])
    newer = day + timedelta(days=1)
    rows = [
        replica(newer, A, "T1_US_A"),
        replica(newer, A, "T1_US_A", "tape"),
        replica(newer, A, "T2_DE_B"),
        replica(newer, A, "T2_FR_C"),
        replica(newer, A, "T3_US_D"),
        replica(newer, A, "T0_CH_E", "tape"),
        replica(newer, A, "T2_IT_F", is_complete=False, present_bytes=TB // 2),
        # Complete over disk and tape together, on neither alone.
        replica(newer, B, "T1_US_A", present_bytes=TB // 2),
        replica(newer, B, "T1_US_A", "tape", present_bytes=1),
        replica(newer, B, "T2_DE_B", dataset_bytes=None),
    ]
    store_table(tmp_path, "dbs_rucio", "dbs_rucio", newer, rows)
    found = on(series_of(tmp_path), 7)
    names = (
        "log_disk_copies_t0",
        "log_disk_copies_t1",
        "log_disk_copies_t2",
        "log_disk_copies_t3",
        "log_tape_copies",
    )
    counts = {
        name: [round(np.expm1(of[column])) for column in names] for name, of in found.items()
    }
    assert counts == {A: [0, 1, 2, 1, 2], B: [0, 0, 1, 0, 0], C: [0, 0, 0, 0, 0]}
    assert {of["is_replicas_known"] for of in found.values()} == {1}
    early = on(series_of(tmp_path), 6)
    assert {early[A][name] for name in (*names, "is_replicas_known")} == {0}


def test_columns_of_the_store_are_bit_identical_when_later_tables_and_days_are_deleted(
    tmp_path: Path,
) -> None:
    days_of(tmp_path)
    for number in (2, 8, 13, 16):
        day = FIRST + timedelta(days=number)
        store_dbs(tmp_path, day, {A: number + 1, B: 5})
        store_table(
            tmp_path,
            "dbs_rucio",
            "dbs_rucio",
            day,
            [replica(day, A, f"T2_DE_{i}") for i in range(number)],
        )
        sites = [f"T2_DE_{i}" for i in range(number % 4 + 1)]
        store_partials(
            tmp_path,
            day,
            [
                partial(
                    day,
                    dataset_name=name,
                    nacc=i + 1,
                    remote_nacc=i,
                    site_name=site,
                    user=user(i + number),
                )
                for name in (A, B, C)
                for i, site in enumerate(sites)
            ],
            run="r2",
        )
    for cut in (14, 17, 21):
        whole = series_of(tmp_path)
        for job in ("data_aggregation", "dbs_events", "dbs_rucio"):
            shutil.copytree(tmp_path / job, tmp_path / "cut" / job)
            for number in range(cut, 28):
                shutil.rmtree(
                    tmp_path / "cut" / job / str(FIRST + timedelta(days=number)),
                    ignore_errors=True,
                )
        fewer = series_of(tmp_path / "cut", cut)
        assert fewer.datasets == whole.datasets and len(fewer.days) == cut
        for day in range(7, cut + 1):
            one, other = Weeks(whole, Label(10)), Weeks(fewer, Label(10))
            assert one.columns == other.columns and set(STORE_COLUMNS) <= set(one.columns)
            assert np.array_equal(one.rows(day), other.rows(day)), (cut, day)
        shutil.rmtree(tmp_path / "cut")
    check_later_days(Weeks(whole, Label(10)), [14, 17, 21])


def test_sites_streams_remote_reads_and_users_of_the_last_days(tmp_path: Path) -> None:
    site, other = "T2_DE_B", "T1_US_A"
    for number in range(30):
        day = FIRST + timedelta(days=number)
        rows = [partial(day, dataset_name=C)]
        if number == 1:
            # Out of the last 28 days on the last day.
            rows += [
                partial(
                    day,
                    dataset_name=A,
                    site_name="T3_X",
                    nacc=1000,
                    remote_nacc=1000,
                    user=user(77),
                )
            ]
        if number == 5:
            rows += [
                partial(day, dataset_name=A, site_name=site, nacc=4, remote_nacc=1, user=user(1)),
                partial(day, dataset_name=A, site_name=site, nacc=2, stream="eos", user=user(2)),
                partial(
                    day, dataset_name=A, site_name="unknown", nacc=30, stream="eos", user=None
                ),
                partial(
                    day, dataset_name=A, site_name=other, nacc=500, stream="condor", user=user(9)
                ),
            ]
        if number == 24:
            rows += [
                partial(
                    day, dataset_name=A, site_name=other, nacc=12, stream="cmssw", user=user(2)
                ),
                partial(
                    day,
                    dataset_name=A,
                    site_name=other,
                    nacc=2,
                    remote_nacc=2,
                    user=user(3),
                    app="other",
                ),
                partial(day, dataset_name=B, site_name=other, user=user(3)),
            ]
        store_partials(tmp_path, day, rows)
    series = series_of(tmp_path, 30)
    of = on(series, 30)[A]
    assert np.expm1([of["log_sites_7d"], of["log_sites_28d"]]).round().tolist() == [1, 2]
    assert (of["largest_site_share_7d"], of["largest_site_share_28d"]) == (1, 14 / 20)
    assert (of["remote_share_7d"], of["remote_share_28d"]) == (1, 3 / 6)
    assert np.expm1(
        [of["log_distinct_users_7d"], of["log_distinct_users_28d"]]
    ).round().tolist() == [2, 3]
    shares = {
        name: (of[f"{name}_share_7d"], of[f"{name}_share_28d"])
        for name in ("aaa", "eos", "cmssw", "crab")
    }
    assert shares == {
        "aaa": (2 / 14, 6 / 50),
        "eos": (0, 32 / 50),
        "cmssw": (12 / 14, 12 / 50),
        "crab": (0, 0),
    }
    nothing = on(series, 24)[B]
    assert {nothing[name] for name in READS_COLUMNS} == {0}
    assert on(series, 30)[C]["is_remote_known_28d"] == 0 and of["is_remote_known_28d"] == 1
    fewer = on(series.only(np.array([0, 2])), 30)
    assert set(fewer) == {A, C}
    assert all(
        fewer[name][column] == on(series, 30)[name][column]
        for name in (A, C)
        for column in READS_COLUMNS
    )


def store_sites(store: Path) -> None:
    """Two datasets at two sites, and one at one of them from the fourth week on."""
    generator = np.random.default_rng(8)
    for number in range(42):
        day = FIRST + timedelta(days=number)
        rows = [
            partial(
                day,
                dataset_name=name,
                site_name=site,
                nacc=int(generator.integers(1, 9)),
                user=user(number % 3),
            )
            for name in (A, B)
            for site in ("T1_US_A", "T2_DE_B")
            if (name, site) != (A, "T2_DE_B") or number % 7 < 2
        ]
        if number >= 24:
            rows.append(partial(day, dataset_name=C, site_name="T2_DE_B", nacc=20))
        store_partials(store, day, rows)
    store_dbs(store, FIRST + timedelta(days=2), {A: 3, B: 4})


def wide_series() -> Series:
    """Forty datasets whose accesses differ from week to week."""
    generator = np.random.default_rng(4)
    values = np.zeros((4, 35, 40))
    values[0] = generator.poisson(generator.lognormal(1, 1, (5, 40)).repeat(7, 0))
    names = tuple(f"/P{number:02}/Run1-v1/AOD" for number in range(40))
    return Series(tuple(FIRST + timedelta(days=number) for number in range(35)), names, values)


def test_a_catalogue_of_later_days_fails_the_run() -> None:
    series = wide_series()
    sizes = np.arange(40.0)
    early, late = (np.stack([sizes + add, sizes, sizes, sizes, sizes]) for add in (0, 9))
    catalogue = Catalogue({"dbs": (Snapshot(0, early), Snapshot(21, late))})
    with_tables = Series(series.days, series.datasets, series.values, catalogue=catalogue)

    class Careless(Weeks):
        def rows(self, day: int) -> Any:
            assert self.series.catalogue is not None
            rows = super().rows(day).copy()
            rows[:, self.columns.index("log_dbs_bytes")] = self.series.catalogue.columns(
                len(self.series.days), 40
            )["log_dbs_bytes"]
            return rows

    check_later_days(Weeks(with_tables, Label(10)), [14])
    check_later_days(Careless(with_tables, Label(10)), [21])
    with pytest.raises(errors.DataError, match="later days are deleted"):
        check_later_days(Careless(with_tables, Label(10)), [14])


def ask(*arguments: object) -> Any:
    return CliRunner().invoke(command, [str(argument) for argument in arguments])
