"""``cmsspark placement``: its inputs, its output, and stores."""

from __future__ import annotations

import json
from datetime import date, timedelta
from pathlib import Path

import polars as pl
import pytest

from cmsspark.apps.placement.inputs import (
    PlacementInputs,
    make_reads,
    make_replicas,
    read_reads,
    read_replicas,
    read_space,
    stored_inputs,
    stored_reads,
)
from cmsspark.apps.placement.plan import recommend
from cmsspark.base import errors
from cmsspark.base.dates import start_ms
from cmsspark.base.periods import between
from cmsspark.base.text.sizes import parse_bytes
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
    copy,
    reads_of,
    run,
)
from tests.run.partial_days import partial, store_partials, store_table


def test_nodes_are_sites_with_their_kind(tmp_path: Path) -> None:
    file = tmp_path / "r.csv"
    file.write_text(
        f"dataset,node,bytes\n{HOT},T1_US_A_MSS,5\n{HOT},T1_US_A_Disk,5\n{HOT},T2_DE_B,4\n"
    )
    made = make_replicas(read_replicas(file), FIRST)
    assert set(made.sites) == {"T1_US_A", "T2_DE_B"} and made.datasets["on_tape"].to_list() == [
        True
    ]
    copies = made.copies.select("bytes", "is_complete").rows()
    assert copies == [(5, True), (4, False)], "the largest copy is the size"


def test_a_node_with_a_kind_of_its_own_is_its_site(tmp_path: Path) -> None:
    file = tmp_path / "r.csv"
    file.write_text(
        f"dataset,site,kind,bytes\n{HOT},T1_US_A_Disk,disk,5\n{HOT},T1_US_A_MSS,tape,5\n"
    )
    made = make_replicas(read_replicas(file), FIRST)
    assert made.sites == ("T1_US_A",) and made.copies["bytes"].to_list() == [5]
    assert made.datasets["on_tape"].to_list() == [True]


def test_kinds_are_read_as_rucio_writes_them_and_others_are_refused(tmp_path: Path) -> None:
    file = tmp_path / "r.csv"
    file.write_text(f"dataset,site,kind,bytes\n{HOT},{A},DISK,5\n{HOT},{A},Tape,5\n")
    assert make_replicas(read_replicas(file), FIRST).datasets["copies"].to_list() == [1]
    file.write_text(f"dataset,site,kind,bytes\n{HOT},{A},ssd,5\n")
    with pytest.raises(errors.DataError, match="'ssd' is no kind of storage"):
        read_replicas(file)


def test_reads_without_a_site_are_counted_and_dropped() -> None:
    reads = reads_of((0, HOT, "unknown", 7), (0, HOT, B, 1))
    assert reads.dropped == 7 and "unknown" not in reads.rows["site"]
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
    every = (days[0], days[2] + timedelta(days=1))
    reads = make_reads(table)
    assert (reads.first, reads.end) == every
    for day, site in zip(days, sites, strict=True):
        store_partials(
            tmp_path,
            day,
            [partial(day, site_name=site, stream="condor" if day == days[2] else "aaa")],
        )
    period = between(days[0], days[2])
    reads = stored_reads(stored_days.find_days(LocalFiles(), str(tmp_path), period))
    assert (reads.first, reads.end) == every


def test_capacities_of_parquet_may_be_floats(tmp_path: Path) -> None:
    pl.DataFrame({"site": ["T2_A", "T2_B"], "capacity": [3.6e16, 1000.0]}).write_parquet(
        tmp_path / "space.parquet"
    )
    assert read_space(tmp_path / "space.parquet") == {
        "T2_A": (3.6e16, None),
        "T2_B": (1000.0, None),
    }


def test_a_site_has_one_row_of_space(tmp_path: Path) -> None:
    (tmp_path / "space.csv").write_text("site,capacity\nT2_A,1TB\nT2_A,2TB\n")
    with pytest.raises(errors.DataError, match="T2_A more than once"):
        read_space(tmp_path / "space.csv")


def test_reads_of_days_to_come_are_told(files: list[str]) -> None:
    assert "warning" not in run("recommend", *files).stderr
    with Path(files[1]).open("a") as accesses:
        accesses.write(f"2099-01-01,{HOT},{B},1,1\n")
    assert "reads are of days to come, up to 2099-01-01" in run("recommend", *files).stderr


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


def test_totals_are_the_sums_of_all_sites(files: list[str]) -> None:
    told = json.loads(run("recommend", *files, "--json").stdout)
    assert told["total"]["copied"] == TB and told["total"]["used"] == 3 * TB
    shown = run("recommend", *files).stdout
    assert [line.split()[:4] for line in shown.splitlines() if "all sites" in line] == [
        ["all", "sites", "3.0", "TB"]
    ]


def test_what_is_only_on_tape_is_listed_apart(files: list[str], tmp_path: Path) -> None:
    (tmp_path / "r.csv").write_text(
        f"dataset,site,kind,bytes\n{HOT},{A},tape,1e12\n{COLD},{A},disk,1e12\n{NEW},{B},disk,1e12\n"
    )
    rows = json.loads(run("recommend", *files, "--json").stdout)["rows"]
    assert [(row["action"], row["dataset"], row["site"]) for row in rows] == [("recall", HOT, B)]
    assert "worth a copy, but only on tape: 1, 1.0 TB" in run("recommend", *files).stdout
    assert json.loads(run("recommend", *files, "--rucio").stdout) == {"add": [], "remove": []}


def test_the_network_bounds_what_a_site_takes_in_a_week(files: list[str], tmp_path: Path) -> None:
    """0.01 Gbit/s bring 756 GB in a week; a copy has 1 TB."""
    for gbits, count in (("0.01", 0), ("0.02", 1)):
        (tmp_path / "s.csv").write_text(
            f"site,capacity,budget,network_gbits\n{B},9TB,,{gbits}\n{A},,3TB,\n"
        )
        rows = json.loads(run("recommend", *files, "--json").stdout)["rows"]
        assert len(rows) == count
    assert read_space(tmp_path / "s.csv") == {B: (9e12, 0.02 * 7.56e13), A: (None, 3e12)}


@pytest.mark.parametrize(
    "arguments",
    [
        ["recommend", "--accesses", "a.csv"],
        ["recommend", "--accesses", "a.csv", "--replicas", "r.csv", "--week", "2026-W02"],
        ["recommend", "--budget", "plenty"],
    ],
)
def test_wrong_words_end_in_2(arguments: list[str]) -> None:
    assert isinstance(run(*arguments).exception, errors.UsageError), arguments


@pytest.mark.parametrize("gone", ["--model", "--threshold", "--locks"])
def test_options_that_changed_nothing_are_gone(gone: str, files: list[str]) -> None:
    assert run("recommend", *files, gone, "1").exit_code == 2


def test_a_pattern_that_keeps_nothing_is_named(files: list[str]) -> None:
    assert "warning" not in run("recommend", *files, "--locked", "/Old/*/*").stderr
    text = run("recommend", *files, "--locked", "/Cosmics/*/RAW").stderr
    assert "warning: no dataset matches --locked /Cosmics/*/RAW" in text


def test_a_site_that_nobody_knows_is_named(files: list[str], tmp_path: Path) -> None:
    space = tmp_path / "s.csv"
    space.write_text("site,capacity\nT2_XX_Y,1TB\n")
    assert isinstance(run("recommend", *files).exception, errors.InputMissing)


def test_advice_keeps_its_columns_without_rows() -> None:
    table = pl.DataFrame([{"kind": "disk", "bytes": TB, **copy(HOT, A)}])
    advice = recommend(PlacementInputs(reads_of((0, HOT, A, 1)), lambda day: table, "x"))
    assert advice.rows.is_empty() and advice.rows.columns[:3] == ["action", "dataset", "site"]


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Six weeks of partials, and two snapshots of replicas: the second one has a dataset more."""
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    for number in range(42):
        day = FIRST + timedelta(days=number)
        rows = [
            partial(day, dataset_name=HOT, site_name=B, nacc=30, read_bytes=10**12),
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


def test_plans_and_backtests_of_a_store(store: Path) -> None:
    space = store / "space.csv"
    space.write_text(f"site,capacity\n{B},5TB\n")
    words = ["--fout", str(store), "--space", str(space)]
    assert "what rules hold is not known" in run("recommend", *words).stdout
    told = json.loads(run("recommend", *words, "--json").stdout)
    assert [(row["action"], row["dataset"], row["site"]) for row in told["rows"]] == [
        ("copy", HOT, B)
    ]
    space.write_text(f"site,capacity,budget\n{B},5TB,1TB\n")
    words += ["--lifetime", "1", "--json"]
    rules = json.loads(run("backtest", *words).stdout)["rules"]
    served = [(row["rule"], row["weeks"], row["served_per_byte"]) for row in rules]
    assert served[0] == ("recommend", 2, 7.0), (
        "replicas are known before the weeks of days 28 and 35"
    )
    early = run("recommend", *words[:4], "--from", "2026-01-05", "--to", "2026-01-20")
    assert early.exit_code == 0, early.output


def test_without_a_dump_of_rucio_rules_to_end_are_not_known(store: Path) -> None:
    (store / "cmsspark.yaml").write_text(f"root: {store}/none\nstate_dir: {store}/state\n")
    words = ["--fout", str(store), "--settings", str(store / "cmsspark.yaml")]
    size = dict.fromkeys(("present_bytes", "dataset_bytes"), 10**12)
    counts = dict.fromkeys(("present_file_count", "present_block_count", "timestamp"), 1)
    copy_of = {"day": FIRST, "dataset_name": COLD, "kind": "disk", "is_complete": True}
    rows = [{**copy_of, **size, **counts, "site_name": site} for site in (A, B)]
    store_table(store, "dbs_rucio", "dbs_rucio", FIRST + timedelta(days=41), rows)
    (store / "s.csv").write_text(f"site,capacity\n{A},0.5TB\n")
    shown = run("recommend", *words, "--space", str(store / "s.csv"), "--rucio")
    assert [copy["rules"] for copy in json.loads(shown.stdout)["remove"]] == [None]
    assert "warning: rules are not known: " in shown.stderr


def test_age_and_since_of_stored_replicas(store: Path) -> None:
    """Copies that the snapshot of the cooldown before had not are since the newer one."""
    day = FIRST + timedelta(days=37)
    rows = [{"day": day, "dataset_name": NEW, "created_ms": start_ms(day) - 4 * 86_400_000}]
    store_table(store, "dbs_events", "dbs_events", day, rows)
    inputs = stored_inputs(str(store), None, None, cooldown_days=14)
    replicas = inputs.replicas_before(FIRST + timedelta(days=42))
    assert dict(replicas.copies.select("dataset", "days").rows()) == {HOT: 32, COLD: 32, NEW: 5}
    ages = dict(replicas.datasets.select("dataset", "age").rows())
    assert ages[NEW] == 9 and ages[HOT] != 9
    early = inputs.replicas_before(FIRST + timedelta(days=12))
    assert early.copies["days"].to_list() != [2, 2], "without an earlier snapshot nothing is young"


def test_stored_copies_of_which_not_all_may_go_stay(store: Path) -> None:
    """Known before the planned week: a table of a later day says nothing of it."""
    day = FIRST + timedelta(days=37)
    rows = [
        {
            "day": day,
            "rse": f"{A}_Disk",
            "dataset_name": name,
            "site_name": A,
            "kind": kind,
            "bytes": 10**12,
            "deletable_bytes": free,
            "timestamp": 1,
        }
        for name, kind, free in (
            (HOT, "disk", 10**12),
            (COLD, "disk", 10**12 - 1),
            (HOT, "tape", 0),
        )
    ]
    store_table(store, "dataset_rses", "dataset_rses", day, rows)
    inputs = stored_inputs(str(store), None, None, cooldown_days=14)

    def fixed(before: date) -> list[str]:
        replicas = inputs.replicas_before(before)
        return replicas.copies.filter("is_fixed")["dataset"].to_list()

    assert "what rules hold is not known" not in inputs.about
    assert inputs.about.endswith(f"dataset_rses of {day}")
    assert fixed(day + timedelta(days=1)) == [NEW, COLD], "of NEW nothing is known"
    assert fixed(day) == []


def test_a_store_without_replicas_says_what_to_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    store_partials(tmp_path, FIRST, [partial(FIRST)])
    error = run("recommend", "--fout", str(tmp_path), "--from", "2026-01-05").exception
    assert isinstance(error, errors.InputMissing) and "run_spark dbs_phedex" in error.text()
