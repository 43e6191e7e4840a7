"""Plans of copies: hand-made worlds, what never goes, space and budgets, siblings, replays that never look ahead."""

from __future__ import annotations

import json
from datetime import date, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from click.testing import CliRunner, Result
from hypothesis import given
from hypothesis import strategies as st

from cmsspark import errors
from cmsspark.cli import command
from cmsspark.placement import demand, replay, synthetic
from cmsspark.placement.demand import Demand, expected, groups_of
from cmsspark.placement.plan import make_plan
from cmsspark.placement.reads import Reads, make_reads, read_reads
from cmsspark.placement.recommend import recommend
from cmsspark.placement.replicas import Replicas, Space, make_replicas, make_space, parse_bytes, read_replicas
from tests.pipeline.partial_days import partial, store_partials, store_table

FIRST = date(2026, 1, 5)  # a Monday
HOT, COLD, NEW = "/Muon/Run1-v1/AOD", "/Old/Run0-v1/AOD", "/Muon/Run2-v1/AOD"
A, B, C = "T1_US_A", "T2_DE_B", "T2_CH_C"
TB = 1e12


def reads_of(*rows: tuple[int, str, str, float], weeks: int = 4, **columns: Any) -> Reads:
    """Reads of rows (day, dataset, site, accesses); a read of another dataset at A fixes the first and last day."""
    rows = (*rows, (0, "/Clock/x/RAW", A, 1), (7 * weeks - 1, "/Clock/x/RAW", A, 1))
    table = {
        "day": [FIRST + timedelta(days=row[0]) for row in rows], "dataset": [row[1] for row in rows],
        "site": [row[2] for row in rows], "accesses": [float(row[3]) for row in rows],
    }  # fmt: skip
    return make_reads(pl.DataFrame({**table, **columns}))


def copies_of(*rows: dict[str, Any], sites: tuple[str, ...] = (A, B, C), reads: Reads | None = None) -> Replicas:
    full = [{"kind": "disk", "bytes": TB, "complete": True, "locked": False, "custodial": False, **row} for row in rows]
    names = reads.datasets if reads else ()
    return make_replicas(pl.DataFrame(full), datasets=names, sites=sites)


def copy(dataset: str, site: str, **other: Any) -> dict[str, Any]:
    return {"dataset": dataset, "site": site, **other}


def plan_of(reads: Reads, replicas: Replicas, space: Space | None = None, **options: Any) -> tuple[set[Any], set[Any]]:
    """(copies to make, copies that go) as pairs of names; without ``space`` there is room for anything."""
    named = reads.named(replicas.datasets, replicas.sites)
    plenty = Space(np.full(len(replicas.sites), 1e18), np.full(len(replicas.sites), np.inf))
    plan = make_plan(replicas, expected(named, groups_of(named.datasets)), space or plenty, **options)
    made = {(replicas.datasets[dataset], replicas.sites[site]) for dataset, site in plan.added}
    gone = {
        (replicas.datasets[replicas.dataset[i]], replicas.sites[replicas.site[i]]) for i in np.nonzero(plan.gone)[0]
    }
    return made, gone


DAILY = [(day, HOT, B, 30) for day in range(28)]


def full(replicas: Replicas, **capacity: float) -> Space:
    """Each site is full with what lies there, except those given."""
    given = {name: (room, None) for name, room in capacity.items()}
    return make_space(replicas, given, None)


def test_what_is_read_from_elsewhere_gets_a_copy_where_it_is_read() -> None:
    reads = reads_of(*DAILY)
    made, gone = plan_of(reads, copies_of(copy(HOT, A), reads=reads))
    assert made == {(HOT, B)} and not gone


def test_where_a_complete_copy_is_none_is_made_and_an_incomplete_one_is_completed() -> None:
    reads = reads_of(*DAILY)
    there = copies_of(copy(HOT, A), copy(HOT, B), reads=reads)
    assert plan_of(reads, there) == (set(), set())
    partial = copies_of(copy(HOT, A), copy(HOT, B, bytes=TB / 4, complete=False, locked=True), reads=reads)
    named = reads.named(partial.datasets, partial.sites)
    space = full(partial, T2_DE_B=TB)
    plan = make_plan(partial, expected(named, groups_of(named.datasets)), space)
    assert plan.moved_bytes == pytest.approx(0.75 * TB) and not plan.gone.any()
    after = plan.result()
    assert after.used().sum() == pytest.approx(2 * TB), "the incomplete copy is not counted beside the complete one"
    assert after.is_fixed.sum() == 1, "a lock stays"


def test_a_full_site_lets_go_what_is_read_least_for_its_bytes() -> None:
    reads = reads_of(*DAILY, (3, COLD, B, 1))
    replicas = copies_of(copy(HOT, A), copy(COLD, A), copy(COLD, B), reads=reads)
    assert plan_of(reads, replicas, full(replicas)) == ({(HOT, B)}, {(COLD, B)})


@pytest.mark.parametrize(
    "other",
    [
        [],
        [copy(COLD, A, kind="tape")],
        [copy(COLD, A, bytes=TB / 2, complete=False)],
        [copy(COLD, A, kind="buffer")],
    ],
)
def test_the_last_complete_copy_on_disk_stays_whatever_lies_on_tape(other: list[dict[str, Any]]) -> None:
    reads = reads_of(*DAILY)
    replicas = copies_of(copy(HOT, A), copy(COLD, B), *other, reads=reads)
    assert plan_of(reads, replicas, full(replicas)) == (set(), set())


def test_an_incomplete_copy_goes_only_beside_complete_ones() -> None:
    reads = reads_of(*DAILY)
    part = copy(COLD, B, complete=False)
    alone = copies_of(copy(HOT, A), part, copy(COLD, C, complete=False), reads=reads)
    assert plan_of(reads, alone, full(alone))[1] == set()
    beside = copies_of(copy(HOT, A), part, copy(COLD, C), reads=reads)
    assert plan_of(reads, beside, full(beside))[1] == {(COLD, B)}


@pytest.mark.parametrize("flag", ["locked", "custodial"])
def test_locked_and_custodial_copies_stay(flag: str) -> None:
    reads = reads_of(*DAILY)
    replicas = copies_of(copy(HOT, A), copy(COLD, A), copy(COLD, B, **{flag: True}), reads=reads)
    assert plan_of(reads, replicas, full(replicas)) == (set(), set())
    pattern = copies_of(copy(HOT, A), copy(COLD, A), copy(COLD, B), reads=reads).fixed_too(["/Old/*"])
    assert plan_of(reads, pattern, full(pattern))[1] == set()


def test_a_planned_copy_does_not_count_as_one() -> None:
    """COLD gets a copy at C in the same plan; its copy at B, the only complete one, stays."""
    reads = reads_of(*DAILY, *[(day, COLD, C, 30) for day in range(28)])
    replicas = copies_of(copy(HOT, A), copy(COLD, B), reads=reads)
    made, gone = plan_of(reads, replicas, full(replicas, T2_CH_C=5 * TB))
    assert made == {(COLD, C)} and not gone


def test_more_copies_remain_where_that_is_asked_for() -> None:
    reads = reads_of(*DAILY)
    replicas = copies_of(copy(HOT, A), copy(COLD, A), copy(COLD, B), reads=reads)
    assert plan_of(reads, replicas, full(replicas), min_copies=2) == (set(), set())


def test_two_sites_do_not_both_let_the_same_dataset_go() -> None:
    reads = reads_of(*DAILY, *[(day, HOT, C, 30) for day in range(28)])
    replicas = copies_of(copy(HOT, A), copy(COLD, B), copy(COLD, C), reads=reads)
    made, gone = plan_of(reads, replicas, full(replicas))
    assert len(gone) == 1 and len(made) == 1


def test_a_budget_bounds_what_is_copied_and_a_free_share_what_stays() -> None:
    reads = reads_of(*DAILY)
    replicas = copies_of(copy(HOT, A), copy(COLD, A), copy(COLD, B), reads=reads)
    room = np.full(len(replicas.sites), 10 * TB)
    assert plan_of(reads, replicas, Space(room, np.full(len(room), 0.9 * TB))) == (set(), set())
    assert plan_of(reads, replicas, Space(room, np.full(len(room), TB)))[0] == {(HOT, B)}
    tight = full(replicas, T1_US_A=2 * TB, T2_DE_B=1.1 * TB)
    named = reads.named(replicas.datasets, replicas.sites)
    plan = make_plan(replicas, expected(named, groups_of(named.datasets)), tight, free_share=0.4, least_accesses=1e9)
    freed = {(replicas.datasets[replicas.dataset[i]], replicas.sites[replicas.site[i]]) for i in plan.freed}
    assert len(freed) == 1 and next(iter(freed))[0] == COLD, "one copy of it has to stay"


def test_reads_that_logs_call_local_are_no_reason_for_a_copy() -> None:
    reads = reads_of(*DAILY, remote=[0.0] * len(DAILY) + [None, None])
    assert plan_of(reads, copies_of(copy(HOT, A), reads=reads))[0] == set()
    remote = reads_of(*DAILY, remote=[30.0] * len(DAILY) + [None, None])
    assert plan_of(remote, copies_of(copy(HOT, A), reads=remote))[0] == {(HOT, B)}


def test_a_new_dataset_is_placed_by_its_siblings() -> None:
    siblings = [(7 + day, f"/Muon/Run1-v{i}/AOD", B, 40) for i in range(4) for day in range(14)]
    reads = reads_of(*siblings)
    replicas = copies_of(copy(NEW, A), copy("/Other/Run2-v1/RAW", A), reads=reads)
    assert plan_of(reads, replicas)[0] == {(NEW, B)}
    named = reads.named(replicas.datasets, replicas.sites)
    wanted = expected(named, groups_of(named.datasets))
    new = replicas.datasets.index(NEW)
    assert wanted.from_siblings[new] and wanted.accesses[new] == pytest.approx(7 * 40), "their first weeks"
    assert wanted.share.sum(1) == pytest.approx(np.ones(len(replicas.datasets)))


def test_a_forecast_scales_what_a_dataset_was_read() -> None:
    reads = reads_of(*DAILY)
    sure = expected(reads, groups_of(reads.datasets), np.ones(2))
    unlikely = expected(reads, groups_of(reads.datasets), np.full(2, 0.25))
    assert sure.accesses[reads.datasets.index(HOT)] == pytest.approx(210)
    assert unlikely.accesses == pytest.approx(sure.accesses / 4)


def test_the_rule_by_tier_knows_no_single_dataset() -> None:
    reads = reads_of(*DAILY, (3, COLD, C, 2))
    sizes = np.array([TB, TB, TB])
    wanted = demand.by_tier(reads, groups_of(reads.datasets), sizes)
    hot, cold = reads.datasets.index(HOT), reads.datasets.index(COLD)
    assert wanted.accesses[hot] == wanted.accesses[cold] and (wanted.share[hot] == wanted.share[cold]).all()


@given(st.integers(0, 10_000))
def test_no_plan_breaks_a_rule(seed: int) -> None:
    generator = np.random.default_rng(seed)
    datasets, sites, count = 12, 4, 30
    pairs = generator.choice(datasets * sites, count, replace=False)
    size = generator.integers(1, 10, datasets).astype(float)
    dataset, site = pairs // sites, pairs % sites
    whole = generator.random(count) < 0.7
    replicas = Replicas(
        tuple(f"/d{i:02}/x/AOD" for i in range(datasets)), tuple(f"T2_{i}" for i in range(sites)), dataset, site,
        np.where(whole, size[dataset], size[dataset] / 2), whole, generator.random(count) < 0.2, size,
        np.zeros(datasets, bool),
    )  # fmt: skip
    share = generator.dirichlet(np.ones(sites), datasets)
    wanted = Demand(generator.exponential(50, datasets), share, np.zeros(datasets, bool), np.ones((datasets, sites)))
    used = replicas.used()
    capacity = used * generator.uniform(0.8, 1.3, sites)
    budget = generator.uniform(0, 15, sites)
    min_copies = int(generator.integers(1, 3))
    plan = make_plan(replicas, wanted, Space(capacity, budget), min_copies=min_copies, least_accesses=1)
    after = plan.result()
    assert not (plan.gone & replicas.is_fixed).any()
    lost = np.unique(dataset[plan.gone])
    kept = np.bincount(dataset[whole & ~plan.gone], minlength=datasets)
    assert (kept[lost] >= min_copies).all(), "planned copies do not count"
    assert (kept[replicas.copies() > 0] > 0).all()
    assert (after.used() <= np.maximum(capacity, used) + 1e-9).all()
    copied = np.zeros(sites)
    for pair in plan.added:
        copied[pair[1]] += plan.bytes_to_copy(*pair)
        assert not replicas.has_copy()[pair]
    assert (copied <= budget + 1e-9).all() and len(set(plan.added)) == len(plan.added)
    assert len(set(zip(after.dataset.tolist(), after.site.tolist(), strict=True))) == len(after.dataset)


def replayed(reads: Reads, replicas: Replicas, **options: Any) -> list[replay.Week]:
    named = reads.named(replicas.datasets, replicas.sites)
    space = full(replicas, **options)
    return replay.Replay(named, lambda day: replicas, space).run(["as-is", "tier", "recent", "oracle"])


def test_a_replay_by_hand() -> None:
    """HOT is read at B, 30 a day; the week of day 28 has 210 reads of it, all remote as long as nothing is copied."""
    reads = reads_of(*[(day, HOT, B, 30) for day in range(35)], weeks=5, bytes=[7.0] * 35 + [0.0, 0.0])
    rows = replayed(reads, copies_of(copy(HOT, A), copy("/Clock/x/RAW", A), reads=reads), T2_DE_B=TB)
    assert [row.rule for row in rows] == ["as-is", "tier", "recent", "oracle"]
    assert [row.remote_reads for row in rows] == [210, 0, 0, 0]
    assert [row.remote_bytes for row in rows] == [49, 0, 0, 0] and {row.reads for row in rows} == {211}
    assert [row.copied_bytes for row in rows] == [0, TB, TB, TB]
    totals = {row["rule"]: row for row in replay.sums(rows)}
    assert totals["recent"]["remote_reads_against_as_is"] == -1 and totals["recent"]["weeks"] == 1


def test_a_replay_is_blind_to_what_comes_later() -> None:
    world, table = synthetic.make_world(3, primaries=6, weeks=8)
    names = tuple(sorted({*world.datasets, *table["dataset"].to_list()}))
    sites = tuple(sorted({*world.sites, *table["site"].to_list()}))
    reads = world.named(names, sites)

    def of(chosen: Reads) -> list[replay.Week]:
        def before(day: date) -> Replicas:
            return make_replicas(table, datasets=names, sites=sites, until=day)

        space = make_space(before(FIRST + timedelta(days=60)), {}, None)
        rules = ["tier", "recent", "predicted"]
        seen: list[int] = []

        def forecast(past: Reads) -> Any:
            seen.append(len(past.days))
            assert past.day.max() < len(past.days)
            return np.ones(len(past.datasets))

        rows = replay.Replay(chosen, before, space, forecast).run(rules)
        assert seen == [28, 35, 42, 49]
        return rows

    whole = of(reads)
    noise = np.random.default_rng(1).integers(1, 500, len(reads.day))
    later = np.where(reads.day >= 35, noise, reads.accesses)
    other = of(Reads(reads.days, names, sites, reads.day, reads.dataset, reads.site, later, reads.can_say,
                     reads.remote, reads.bytes))  # fmt: skip
    plans = [(row.copied_bytes, row.removed_bytes, row.copies_made, row.copies_removed) for row in whole]
    others = [(row.copied_bytes, row.removed_bytes, row.copies_made, row.copies_removed) for row in other]
    assert plans[:6] == others[:6], "the weeks of days 28 and 35 are planned from the days before them"
    assert plans[6:] != others[6:] and whole[:3] == other[:3] and whole[3:6] != other[3:6]


def test_snapshots_of_later_days_are_not_seen() -> None:
    table = pl.DataFrame([
        {"dataset": HOT, "site": A, "bytes": TB, "kind": "disk", "since": FIRST},
        {"dataset": NEW, "site": A, "bytes": TB, "kind": "disk", "since": FIRST + timedelta(days=9)},
    ])  # fmt: skip
    at = make_replicas(table, datasets=[NEW], until=FIRST + timedelta(days=9))
    assert at.copies().tolist() == [1, 0] and at.datasets == (HOT, NEW)
    later = make_replicas(table, until=FIRST + timedelta(days=10))
    assert replay.with_arrivals(at, at, later).copies().tolist() == [1, 1]


def test_what_is_complete_only_with_tape_is_no_copy_on_disk() -> None:
    """is_complete of stored tables is over all kinds of storage of a site."""
    whole = {"complete": True, "size": TB}
    mixed = copies_of(copy(HOT, A, **{**whole, "bytes": TB / 2}), copy(HOT, A, **{**whole, "kind": "tape"}))
    assert mixed.copies().tolist() == [0] and mixed.on_tape.tolist() == [True]
    # Invalid files are in the size of DBS, and nowhere on disk.
    alone = copies_of(copy(HOT, A, complete=True, size=TB, bytes=0.99 * TB))
    assert alone.copies().tolist() == [1]


def test_nodes_are_sites_with_their_kind(tmp_path: Path) -> None:
    file = tmp_path / "r.csv"
    file.write_text(f"dataset,node,bytes\n{HOT},T1_US_A_MSS,5\n{HOT},T1_US_A_Disk,5\n{HOT},T2_DE_B,4\n")
    made = make_replicas(read_replicas(file))
    assert made.sites == ("T1_US_A", "T2_DE_B") and made.on_tape.tolist() == [True]
    assert made.bytes.tolist() == [5, 4] and made.is_complete.tolist() == [True, False], "the largest copy is the size"


def test_reads_without_a_site_are_counted_and_dropped() -> None:
    reads = reads_of((0, HOT, "unknown", 7), (0, HOT, B, 1))
    assert reads.dropped == 7 and "unknown" not in reads.sites
    with pytest.raises(errors.InputMissing, match="no access names a site"):
        make_reads(pl.DataFrame({"day": [FIRST], "dataset": [HOT], "site": ["unknown"], "accesses": [1.0]}))


def test_sizes_are_read_as_people_write_them() -> None:
    assert [parse_bytes(text) for text in ("1000", "1.5TB", "2 KiB", "3pb")] == [1000, 15 * 10**11, 2048, 3 * 10**15]
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


@pytest.fixture
def files(tmp_path: Path) -> list[str]:
    rows = [(day, HOT, B, 30) for day in range(42)] + [(day, COLD, B, day % 2) for day in range(42)]
    lines = [f"{FIRST + timedelta(days=day)},{name},{site},{count}" for day, name, site, count in rows]
    accesses, replicas, space = (tmp_path / name for name in ("a.csv", "r.csv", "s.csv"))
    accesses.write_text("day,dataset,site,accesses\n" + "\n".join(lines) + "\n")
    replicas.write_text(
        "dataset,site,kind,bytes,complete,locked\n"
        f"{HOT},{A},disk,1e12,y,n\n{COLD},{A},disk,1e12,y,n\n{COLD},{B},disk,1e12,y,n\n{HOT},{A},tape,1e12,y,y\n"
    )
    space.write_text(f"site,capacity,budget\n{B},1.2TB,5TB\n{A},,\n")
    return ["--accesses", str(accesses), "--replicas", str(replicas), "--space", str(space), "--model", "average"]


def run(*arguments: str) -> Result:
    return CliRunner().invoke(command, ["placement", *arguments])


def test_recommend_prints_and_writes_the_plan(files: list[str], tmp_path: Path) -> None:
    shown = run("recommend", *files)
    assert shown.exit_code == 0, shown.output
    assert "copies to make: 1" in shown.stdout and "copies that can go: 1" in shown.stdout
    told = json.loads(run("recommend", *files, "--json").stdout)
    assert told["first_day"] == "2026-02-16"
    rows = [(row["action"], row["dataset"], row["site"], row["copies"], row["why"]) for row in told["rows"]]
    assert rows == [("copy", HOT, B, 1, "its reads"), ("remove", COLD, B, 2, "another copy")]
    by_site = {row["site"]: row for row in told["sites"]}
    assert by_site[B]["copied"] == by_site[B]["removed"] == TB and by_site[B]["capacity"] == 1.2 * TB
    out = tmp_path / "plan.csv"
    assert run("recommend", *files, "-o", str(out)).exit_code == 0
    assert pl.read_csv(out).select("action", "dataset", "site").rows() == [row[:3] for row in rows]


def test_replay_compares_rules_and_marks_synthetic_data(files: list[str]) -> None:
    told = json.loads(run("replay", *files, "--json").stdout)
    totals = {row["rule"]: row for row in told["sums"]}
    assert totals["as-is"]["weeks"] == 2 and totals["as-is"]["remote_reads"] == 2 * 210
    assert totals["predicted"]["remote_reads"] < 210 and told["is_synthetic"] is False
    made_up = run("replay", "--synthetic", "1", "--last", "1", "--rule", "tier", "--rule", "recent")
    assert made_up.exit_code == 0 and "synthetic data" in made_up.stdout and "no measurement" in made_up.stdout


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


def test_a_site_that_nobody_knows_is_named(files: list[str], tmp_path: Path) -> None:
    space = tmp_path / "s.csv"
    space.write_text("site,capacity\nT2_XX_Y,1TB\n")
    assert isinstance(run("recommend", *files).exception, errors.InputMissing)


def test_advice_keeps_its_columns_without_rows() -> None:
    reads = reads_of((0, HOT, A, 1))
    replicas = copies_of(copy(HOT, A), reads=reads)
    named = reads.named(replicas.datasets, replicas.sites)
    advice = recommend(named, lambda day: replicas, full, np.zeros(len(named.datasets)))
    assert advice.rows == [] and pl.DataFrame([], schema=advice.schema).columns[:3] == ["action", "dataset", "site"]


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Six weeks of partials, and two snapshots of replicas: the second one has a dataset more."""
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    for number in range(42):
        day = FIRST + timedelta(days=number)
        rows = [partial(day, dataset_name=HOT, site_name=B, nacc=30), partial(day, dataset_name=COLD, site_name=A)]
        store_partials(tmp_path, day, rows)
    for number, datasets in ((10, [HOT, COLD]), (37, [HOT, COLD, NEW])):
        day = FIRST + timedelta(days=number)
        lying = [
            {"day": day, "dataset_name": name, "site_name": A, "kind": "disk", "present_bytes": 10**12,
             "dataset_bytes": 10**12, "present_file_count": 1, "present_block_count": 1, "is_complete": True,
             "timestamp": 1}
            for name in datasets
        ]  # fmt: skip
        store_table(tmp_path, "dbs_rucio", "dbs_rucio", day, lying)
    return tmp_path


def test_plans_and_replays_of_a_store(store: Path) -> None:
    space = store / "space.csv"
    space.write_text(f"site,capacity\n{B},5TB\n")
    words = ["--fout", str(store), "--space", str(space), "--model", "average"]
    told = json.loads(run("recommend", *words, "--json").stdout)
    assert [(row["action"], row["dataset"], row["site"]) for row in told["rows"]] == [("copy", HOT, B)]
    shown = json.loads(run("replay", *words, "--rule", "as-is", "--rule", "recent", "--json").stdout)
    assert [row["remote_reads"] for row in shown["weeks"]] == [210, 0, 210, 0]
    early = run("replay", *words, "--from", "2026-01-05", "--to", "2026-02-15", "--last", "2")
    assert early.exit_code == 0 and "remote reads" in early.stdout


def test_a_store_without_replicas_says_what_to_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    store_partials(tmp_path, FIRST, [partial(FIRST)])
    error = run("recommend", "--fout", str(tmp_path), "--from", "2026-01-05").exception
    assert isinstance(error, errors.InputMissing) and "run_spark dbs_phedex" in error.text()
