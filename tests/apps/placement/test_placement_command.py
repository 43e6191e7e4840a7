"""``cmsspark placement``: its inputs, its output, and stores."""

from __future__ import annotations

import json
from datetime import timedelta
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from cmsspark.apps.placement.demand import Outlook
from cmsspark.apps.placement.reads import make_reads, read_reads, stored_reads
from cmsspark.apps.placement.recommend import recommend
from cmsspark.apps.placement.replicas import make_replicas, parse_bytes, read_replicas, read_space
from cmsspark.base import errors
from cmsspark.base.periods import between
from cmsspark.filesystems.storage import LocalFiles
from cmsspark.store import stored_days
from tests.apps.placement.worlds import (
    COLD,
    FIRST,
    HOT,
    NEW,
    TB,
    A,
    B,
    copies_of,
    copy,
    full,
    reads_of,
    run,
)
from tests.run.partial_days import partial, store_partials, store_table


def test_nodes_are_sites_with_their_kind(tmp_path: Path) -> None:
    file = tmp_path / "r.csv"
    file.write_text(
        f"dataset,node,bytes\n{HOT},T1_US_A_MSS,5\n{HOT},T1_US_A_Disk,5\n{HOT},T2_DE_B,4\n"
    )
    made = make_replicas(read_replicas(file))
    assert made.sites == ("T1_US_A", "T2_DE_B") and made.on_tape.tolist() == [True]
    assert made.bytes.tolist() == [5, 4] and made.is_complete.tolist() == [True, False], (
        "the largest copy is the size"
    )


def test_a_node_with_a_kind_of_its_own_is_its_site(tmp_path: Path) -> None:
    file = tmp_path / "r.csv"
    file.write_text(
        f"dataset,site,kind,bytes\n{HOT},T1_US_A_Disk,disk,5\n{HOT},T1_US_A_MSS,tape,5\n"
    )
    made = make_replicas(read_replicas(file))
    assert (
        made.sites == ("T1_US_A",)
        and made.bytes.tolist() == [5]
        and made.on_tape.tolist() == [True]
    )


def test_reads_without_a_site_are_counted_and_dropped() -> None:
    reads = reads_of((0, HOT, "unknown", 7), (0, HOT, B, 1))
    assert reads.dropped == 7 and "unknown" not in reads.sites
    with pytest.raises(errors.InputMissing, match="no access names a site"):
        make_reads(
            pl.DataFrame(
                {"day": [FIRST], "dataset": [HOT], "site": ["unknown"], "accesses": [1.0]}
            )
        )


def test_days_whose_reads_name_no_site_are_days_of_the_plan(tmp_path: Path) -> None:
    days = [FIRST + timedelta(days=number) for number in range(3)]
    sites = pl.Series(["unknown", B, "unknown"])
    table = pl.DataFrame({"day": days, "dataset": [HOT] * 3, "site": sites, "accesses": [1.0] * 3})
    assert make_reads(table).days == tuple(days)
    for day, site in zip(days, sites, strict=True):
        store_partials(
            tmp_path,
            day,
            [partial(day, site_name=site, stream="condor" if day == days[2] else "aaa")],
        )
    period = between(days[0], days[2])
    assert stored_reads(stored_days.find_days(LocalFiles(), str(tmp_path), period)).days == tuple(
        days
    )


def test_capacities_of_parquet_may_be_floats(tmp_path: Path) -> None:
    pl.DataFrame({"site": ["T2_A", "T2_B"], "capacity": [3.6e16, 1000.0]}).write_parquet(
        tmp_path / "space.parquet"
    )
    assert read_space(tmp_path / "space.parquet") == {
        "T2_A": (3.6e16, None),
        "T2_B": (1000.0, None),
    }


def test_sizes_are_read_as_people_write_them() -> None:
    assert [parse_bytes(text) for text in ("1000", "1.5TB", "2 KiB", "3pb")] == [
        1000,
        15 * 10**11,
        2048,
        3 * 10**15,
    ]
    with pytest.raises(errors.UsageError, match="not a size"):
        parse_bytes("much")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("day,dataset,site\n2026-01-05,a,b\n", "no column accesses or nacc"),
        ("day,dataset,site,accesses\n2026-01-05,a,b,-1\n", "negative"),
        ("day,dataset,site,accesses\nMonday,a,b,1\n", "row 2"),
        ("day,dataset,site,accesses\n2026-01-05,,b,1\n", "nulls"),
        ("day,dataset,site,accesses\n2026-01-05,a,b,nan\n", "negative"),
        ("day,dataset,site,accesses\n", "no rows"),
    ],
)
def test_damaged_files_are_refused(text: str, message: str, tmp_path: Path) -> None:
    file = tmp_path / "a.csv"
    file.write_text(text)
    with pytest.raises(errors.DataError) as caught:
        read_reads(file)
    assert message in caught.value.text()


def test_recommend_prints_and_writes_the_plan(files: list[str], tmp_path: Path) -> None:
    shown = run("recommend", *files)
    assert shown.exit_code == 0, shown.output
    assert "copies to make: 1" in shown.stdout and "copies that can go: 1" in shown.stdout
    told = json.loads(run("recommend", *files, "--json").stdout)
    assert told["first_day"] == "2026-02-16"
    rows = [
        (row["action"], row["dataset"], row["site"], row["copies"], row["why"])
        for row in told["rows"]
    ]
    assert rows == [("copy", HOT, B, 1, "its reads"), ("remove", COLD, B, 2, "another copy")]
    by_site = {row["site"]: row for row in told["sites"]}
    assert (
        by_site[B]["copied"] == by_site[B]["removed"] == TB and by_site[B]["capacity"] == 1.2 * TB
    )
    out = tmp_path / "plan.csv"
    assert run("recommend", *files, "-o", str(out)).exit_code == 0
    assert pl.read_csv(out).select("action", "dataset", "site").rows() == [row[:3] for row in rows]


def test_replay_compares_rules_and_marks_synthetic_data(files: list[str]) -> None:
    told = json.loads(run("replay", *files, "--json").stdout)
    totals = {row["rule"]: row for row in told["sums"]}
    assert totals["as-is"]["weeks"] == 2 and totals["as-is"]["remote_reads"] == 2 * 210
    assert totals["predicted"]["remote_reads"] < 210 and told["is_synthetic"] is False
    made_up = run(
        "replay", "--synthetic", "1", "--last", "1", "--rule", "tier", "--rule", "recent"
    )
    assert (
        made_up.exit_code == 0
        and "synthetic data" in made_up.stdout
        and "no measurement" in made_up.stdout
    )


def test_a_replay_names_a_rule_once_and_no_share_of_bytes_that_nobody_logged(
    files: list[str],
) -> None:
    text = run(
        "replay", *files, "--last", "1", "--weekly", "--rule", "tier", "--rule", "tier"
    ).stdout
    assert text.startswith("1 week from 2026-02-09 on")
    lines = [line.split() for line in text.splitlines() if "tier" in line.split()[:2]]
    assert [len(line) for line in lines] == [8, 11], "one line of the week, one of the sums"
    assert lines[0][3] == lines[1][3] == "–", "remote bytes are unknown, not 0 %"


def test_a_copy_that_needs_no_bytes_is_printed(files: list[str], tmp_path: Path) -> None:
    (tmp_path / "r.csv").write_text(
        f"dataset,site,bytes,complete\n{HOT},{A},1e12,y\n{HOT},{B},1e12,n\n{COLD},{A},1e12,y\n"
    )
    text = run("recommend", *files).stdout
    assert "copies to make: 1, 0 B" in text and "no copy is worth making" not in text


@pytest.mark.parametrize(
    "arguments",
    [
        ["recommend", "--accesses", "a.csv"],
        ["recommend", "--accesses", "a.csv", "--replicas", "r.csv", "--week", "2026-W02"],
        ["replay", "--synthetic", "1", "--locked", "/a/*/*"],
        ["replay", "--synthetic", "1", "--rule", "luck"],
        ["recommend", "--budget", "plenty"],
    ],
)
def test_wrong_words_end_in_2(arguments: list[str]) -> None:
    assert isinstance(run(*arguments).exception, errors.UsageError), arguments


def test_locks_that_keep_nothing_are_named(files: list[str], tmp_path: Path) -> None:
    locks = tmp_path / "locks.csv"
    locks.write_text(f"dataset,site\n{COLD},{B}\n{COLD},\n")
    assert (
        "warning"
        not in run("recommend", *files, "--locks", str(locks), "--locked", "/Old/*/*").stderr
    )
    locks.write_text(f"dataset,site\n{COLD},{B}\n{COLD},T2_DE_Typo\n")
    text = run("recommend", *files, "--locks", str(locks), "--locked", "/Cosmics/*/RAW").stderr
    assert "2 locks of datasets on disk" in text
    assert (
        "warning: 2 locks of names that no read and no replica has, such as /Cosmics/*/RAW" in text
    )


def test_a_site_that_nobody_knows_is_named(files: list[str], tmp_path: Path) -> None:
    space = tmp_path / "s.csv"
    space.write_text("site,capacity\nT2_XX_Y,1TB\n")
    assert isinstance(run("recommend", *files).exception, errors.InputMissing)


def test_advice_keeps_its_columns_without_rows() -> None:
    reads = reads_of((0, HOT, A, 1))
    replicas = copies_of(copy(HOT, A), reads=reads)
    named = reads.named(replicas.datasets, replicas.sites)
    advice = recommend(named, lambda day: replicas, full, Outlook(np.zeros(len(named.datasets))))
    assert advice.rows == [] and pl.DataFrame([], schema=advice.schema).columns[:3] == [
        "action",
        "dataset",
        "site",
    ]


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Six weeks of partials, and two snapshots of replicas: the second one has a dataset more."""
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    for number in range(42):
        day = FIRST + timedelta(days=number)
        rows = [
            partial(day, dataset_name=HOT, site_name=B, nacc=30),
            partial(day, dataset_name=COLD, site_name=A),
        ]
        store_partials(tmp_path, day, rows)
    for number, datasets in ((10, [HOT, COLD]), (37, [HOT, COLD, NEW])):
        day = FIRST + timedelta(days=number)
        lying = [
            {
                "day": day,
                "dataset_name": name,
                "site_name": A,
                "kind": "disk",
                "present_bytes": 10**12,
                "dataset_bytes": 10**12,
                "present_file_count": 1,
                "present_block_count": 1,
                "is_complete": True,
                "timestamp": 1,
            }
            for name in datasets
        ]
        store_table(tmp_path, "dbs_rucio", "dbs_rucio", day, lying)
    return tmp_path


def test_plans_and_replays_of_a_store(store: Path) -> None:
    space = store / "space.csv"
    space.write_text(f"site,capacity\n{B},5TB\n")
    words = ["--fout", str(store), "--space", str(space), "--model", "average"]
    told = json.loads(run("recommend", *words, "--json").stdout)
    assert [(row["action"], row["dataset"], row["site"]) for row in told["rows"]] == [
        ("copy", HOT, B)
    ]
    shown = json.loads(
        run("replay", *words, "--rule", "as-is", "--rule", "recent", "--json").stdout
    )
    assert [row["remote_reads"] for row in shown["weeks"]] == [210, 0, 210, 0]
    early = run("replay", *words, "--from", "2026-01-05", "--to", "2026-02-15", "--last", "2")
    assert early.exit_code == 0 and "remote reads" in early.stdout


def test_a_store_without_replicas_says_what_to_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    store_partials(tmp_path, FIRST, [partial(FIRST)])
    error = run("recommend", "--fout", str(tmp_path), "--from", "2026-01-05").exception
    assert isinstance(error, errors.InputMissing) and "run_spark dbs_phedex" in error.text()
