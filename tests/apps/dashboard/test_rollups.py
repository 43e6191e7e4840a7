"""Rollups: built once a run, built again when damaged, exact where numbers are large,
honest where days are broken.
"""

from __future__ import annotations

import errno
import gc
import json
import os
import shutil
import signal
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from datetime import date, timedelta
from multiprocessing.connection import Connection
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from msgspec.structs import replace

from cmsspark.apps.dashboard import dataset_ranking, segment_build, snapshot, use
from cmsspark.apps.dashboard import rollups as rollups_module
from cmsspark.apps.dashboard.app import Services, create_app
from cmsspark.apps.dashboard.query_process import Child
from cmsspark.apps.dashboard.rollup_refresher import RollupRefresher
from cmsspark.apps.dashboard.rollups import Rollups, RollupState
from cmsspark.apps.dashboard.security import Guard
from cmsspark.apps.dashboard.segment import (
    SUMS,
    NameList,
    ResourceExhausted,
    RollupsDamagedError,
    write_names,
)
from cmsspark.apps.dashboard.segment_build import RollupProcess
from cmsspark.apps.dashboard.selection import Selection
from cmsspark.apps.dashboard.snapshot import Snapshot
from cmsspark.base.errors import DataError, InputMissing, NotReady
from cmsspark.store.query.database import Database
from cmsspark.store.query.stored_parts import StoredInterval
from tests.apps.dashboard import stores
from tests.apps.dashboard.stores import LAST


class Refreshed:
    """Rollups of a store with what they logged."""

    def __init__(self, store: Path, cache: Path) -> None:
        self.log: list[str] = []
        self.rollups = Rollups(Database(str(store), threads=1), cache, self.log.append)

    def refresh(self) -> tuple[RollupState, list[str]]:
        self.log.clear()
        state = self.rollups.refresh()
        self.rollups.remove_old(state)
        return state, list(self.log)


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """Three days of two months."""
    for back in (0, 1, 20):
        day = LAST - timedelta(days=back)
        stores.store_day(tmp_path / "store", day, stores.partial_rows(day, count=30))
    return tmp_path / "store"


def nacc(state: RollupState) -> int:
    loaded = snapshot.load(state)
    return use.totals(loaded, Selection(loaded.days[0], loaded.days[-1]))["nacc"] or 0


def test_only_what_is_new_is_built(store: Path, tmp_path: Path) -> None:
    refreshed = Refreshed(store, tmp_path / "cache")
    state, log = refreshed.refresh()
    assert len(log) == 3 and len(state.segments) == 3
    again = Refreshed(store, tmp_path / "cache")
    assert again.refresh() == (state, [])  # another process finds them
    day = LAST + timedelta(days=1)
    stores.store_day(store, day, stores.partial_rows(day, count=10))
    later, log = again.refresh()
    assert log == [f"rollups of {day}: 1 day"] and set(later.runs) == set(state.runs) | {day}


def test_what_has_no_room_in_memory_goes_into_the_cache(store: Path, tmp_path: Path) -> None:
    refreshed = Refreshed(store, tmp_path / "cache")
    loaded = snapshot.load(refreshed.refresh()[0])
    (folder,) = refreshed.rollups.folder.glob(".spilled-*")
    assert loaded.query("SELECT current_setting('temp_directory')") == [(str(folder),)]
    refreshed.refresh()
    assert folder.is_dir()
    # Nobody uses it any more, as after a server that was killed.
    del loaded
    gc.collect()
    refreshed.refresh()
    assert not folder.exists()


def test_a_day_that_was_run_again_replaces_its_segment(store: Path, tmp_path: Path) -> None:
    refreshed = Refreshed(store, tmp_path / "cache")
    state, _ = refreshed.refresh()
    rows = stores.partial_rows(LAST, seed=9, count=12)
    stores.store_day(store, LAST, rows)
    later, log = refreshed.refresh()
    assert log == [f"rollups of {LAST}: 1 day"] and later.runs[LAST] != state.runs[LAST]
    others = [
        row
        for back in (1, 20)
        for row in stores.partial_rows(LAST - timedelta(days=back), count=30)
    ]
    assert nacc(later) == sum(row["nacc"] for row in (*rows, *others) if row["stream"] != "condor")
    assert len(list(refreshed.rollups.folder.glob("*.duckdb"))) == 3


def test_a_month_that_is_over_becomes_one_segment(store: Path, tmp_path: Path) -> None:
    refreshed = Refreshed(store, tmp_path / "cache")
    refreshed.refresh()
    day = LAST.replace(month=2, day=1)
    stores.store_day(store, day, stores.partial_rows(day, count=10))
    state, _ = refreshed.refresh()
    assert [segment.path.name.partition(".")[0] for segment in state.segments] == [
        "2025-12",
        "2026-01",
        "2026-02-01",
    ]


def test_days_stay_as_they_were_until_their_week_is_one_segment(tmp_path: Path) -> None:
    store, cache = tmp_path / "store", tmp_path / "cache"

    def add(day: date) -> None:
        stores.store_day(store, day, stores.partial_rows(day, count=10))

    for number in (5, 6, 7):
        add(LAST.replace(day=number))
    with Database(str(store)) as database:
        rollups, offered = Rollups(database, cache, lambda text: None), list[RollupState]()
        rollups.refresh()
        add(LAST.replace(day=8))
        state = rollups.refresh(offered.append)
        assert [segment.path.name.partition(".")[0] for segment in state.segments] == [
            "2026-01-week1",
            "2026-01-08",
        ]
        assert [sorted(one.pending) for one in offered] == [[LAST.replace(day=8)], []]
        assert [len(one.segments) for one in offered] == [3, 4]
        assert nacc(offered[-1]) == nacc(state) > nacc(offered[0]) > 0


def test_a_new_day_is_shown_before_the_month_that_it_ends_is_built(
    store: Path, tmp_path: Path
) -> None:
    shown: dict[str, date] = {}

    class Builder(RollupProcess):
        def __call__(self, days: Sequence[StoredInterval], folder: Path, name: str) -> Path:
            if refresher.is_loaded:
                shown[name.partition(".")[0]] = refresher.snapshot().days[-1]
            return segment_build.build(days, folder, name)

    with Database(str(store)) as database:
        refresher = RollupRefresher(database, tmp_path / "cache", builder=Builder())
        refresher.refresh()
        shown.clear()
        new = LAST.replace(month=2, day=1)
        stores.store_day(store, new, stores.partial_rows(new, count=10))
        refresher.refresh()
        assert shown == {"2026-02-01": LAST, "2026-01": new}
        assert refresher.snapshot().segments[1].path.name.startswith("2026-01.")
        assert not refresher.freshness.behind
        refresher.stop()


@pytest.mark.parametrize("damage", ["flip", "cut", "delete", "names"])
def test_a_damaged_segment_is_built_anew(store: Path, tmp_path: Path, damage: str) -> None:
    first = Refreshed(store, tmp_path / "cache")
    state, _ = first.refresh()
    wanted = nacc(state)
    path = state.segments[0].path if damage != "names" else first.rollups.folder / "names.json"
    content = bytearray(path.read_bytes())
    if damage in ("flip", "names"):
        content[len(content) // 2] ^= 1
        path.write_bytes(content)
    elif damage == "cut":
        path.write_bytes(content[:-10])
    else:
        path.unlink()
    later, log = Refreshed(store, tmp_path / "cache").refresh()
    built = [line for line in log if line.startswith("rollups of")]
    assert len(built) == (3 if damage == "names" else 1)
    assert any("are damaged" in line for line in log) == (damage in ("flip", "cut"))
    assert nacc(later) == wanted


def test_numbers_of_another_list_of_names_are_not_shown(store: Path, tmp_path: Path) -> None:
    state, _ = Refreshed(store, tmp_path / "cache").refresh()
    write_names(state.segments[0].path.parent, NameList("another", {}))
    with pytest.raises(RollupsDamagedError, match="names"):
        snapshot.load(state)


def test_sets_of_segments_with_more_people_meet_those_with_fewer(tmp_path: Path) -> None:
    rows = []
    for back, people in ((40, 1_400), (20, 700), (0, 30)):
        day = LAST - timedelta(days=back)
        rows.append(stores.partial_rows(day, count=3_000, people=people))
        stores.store_day(tmp_path / "store", day, rows[-1])
    loaded = snapshot.load(Refreshed(tmp_path / "store", tmp_path / "cache").refresh()[0])
    assert len(set(loaded.widths)) > 1
    chosen = Selection(LAST - timedelta(days=40), LAST)
    accesses = [row for of_day in rows for row in of_day if row["stream"] != "condor"]
    assert use.totals(loaded, chosen)["users"] == len({row["user"] for row in accesses} - {None})
    names = sorted({row["dataset_name"] for row in accesses})
    for filters in ((), (("site_tier", "T2"),)):
        numbers = np.array([loaded.datasets[name] for name in names], np.int32)
        own = replace(chosen, filters=filters)
        counts = dataset_ranking.users_of_datasets(loaded, own, numbers)
        for name, count in zip(names, counts, strict=True):
            own = (row for row in accesses if row["dataset_name"] == name)
            own = (row for row in own if not filters or row["site_name"].startswith("T2_"))
            assert count == len({row["user"] for row in own} - {None})


def test_a_damaged_day_is_left_out_and_named_and_the_others_stay(
    store: Path, tmp_path: Path
) -> None:
    (part,) = (store / "data_aggregation" / LAST.isoformat()).glob("runs/*/partials/*.parquet")
    part.write_bytes(b"PAR1" + bytes(part.stat().st_size - 8) + b"PAR1")
    refreshed = Refreshed(store, tmp_path / "cache")
    state, _ = refreshed.refresh()
    assert set(state.faults) == {LAST} and LAST not in state.runs and len(state.runs) == 2
    assert refreshed.refresh()[1] == []  # not tried again and again
    stores.store_day(store, LAST, stores.partial_rows(LAST, count=5))
    assert refreshed.refresh()[0].faults == {}


def damage(store: Path, day: date) -> tuple[Path, bytes]:
    """Damage the partials of a day. Returns the part and what it held."""
    folder = store / "data_aggregation" / day.isoformat()
    run = json.loads((folder / "CURRENT").read_text())["run"]
    (part,) = (folder / "runs" / run / "partials").glob("*.parquet")
    content = part.read_bytes()
    part.write_bytes(b"PAR1" + bytes(len(content) - 8) + b"PAR1")
    return part, content


@pytest.mark.parametrize("kind", ["damaged", "gone", "cut"])
@pytest.mark.parametrize("back", [0, 20])
def test_a_day_that_comes_back_is_complete_at_the_next_look(
    store: Path, tmp_path: Path, kind: str, back: int
) -> None:
    day = LAST - timedelta(days=back)
    part, content = damage(store, day)
    if kind == "gone":
        part.unlink()
    elif kind == "cut":
        part.write_bytes(content[:-10])
    with Database(str(store)) as database:
        refresher = RollupRefresher(database, tmp_path / "cache")
        refresher.refresh()
        before = refresher.snapshot()
        assert set(before.state.faults) == {day} and day not in before.days
        refresher.refresh()
        assert refresher.snapshot() is before
        part.write_bytes(content)
        refresher.refresh()
        after = refresher.snapshot()
        assert after.state.faults == {} and day in after.days


def test_a_day_that_could_not_be_read_is_tried_again_alone(
    store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    built: list[int] = []
    is_failing, clock = [True], [0.0]
    monkeypatch.setattr(
        rollups_module, "time", SimpleNamespace(monotonic=lambda: clock[0], time=time.time)
    )

    def build(days: Sequence[StoredInterval], folder: Path, name: str) -> Path:
        built.append(len(days))
        if is_failing[0] and any(entry.first_day == LAST for entry in days):
            raise DataError("a disk did not answer")
        return segment_build.build(days, folder, name)

    later = LAST.replace(month=2, day=1)
    stores.store_day(store, later, stores.partial_rows(later, count=10))
    with Database(str(store)) as database:
        rollups = Rollups(database, tmp_path / "cache", lambda text: None, build)
        assert set(rollups.refresh().faults) == {LAST}
        built.clear()
        assert set(rollups.refresh().faults) == {LAST} and built == []
        clock[0] += 61
        assert set(rollups.refresh().faults) == {LAST} and built == [1]
        is_failing[0] = False
        clock[0] += 61
        state = rollups.refresh()
        assert not state.faults and LAST in state.runs and built == [1, 1, 2]


@pytest.mark.parametrize("back", [0, 20])
def test_a_damaged_newest_or_oldest_day_is_named_on_the_default_page(
    store: Path, tmp_path: Path, back: int
) -> None:
    day = LAST - timedelta(days=back)
    damage(store, day)
    with Database(str(store)) as database:
        refresher = RollupRefresher(database, tmp_path / "cache")
        refresher.refresh()
        services = Services(refresher, database, tmp_path / "state", Guard())
        pages = create_app(services).test_client()
        # Two periods of equal length may lack the oldest day.
        for name in ("popularity", "users", "datasets", "sites", *["compare"] * (back == 0)):
            assert f"{day} is left out: " in pages.get(f"/{name}").text, name
        for other in [LAST - timedelta(days=number) for number in {0, 1, 20} - {back}]:
            # What was read of a run stays valid: another run is read.
            stores.store_day(store, other, stores.partial_rows(other, count=5))
            damage(store, other)
        refresher.refresh()
        text = pages.get("/popularity").text
        assert "No stored day of accesses can be read" in text and f"{day} is left out: " in text


def _end(pipe: Connection, code: int) -> None:
    pipe.recv()
    if code < 0:
        os.kill(os.getpid(), -code)
    if code == errno.ENOMEM:
        raise MemoryError
    sys.exit(code)


@pytest.mark.parametrize(
    ("code", "found"),
    [
        (-signal.SIGKILL, "killed (SIGKILL) by somebody, or by the system when memory is short"),
        (errno.ENOMEM, "it lacked memory"),
        (-signal.SIGTERM, "it ended by signal 15 (Terminated)"),
        (3, "it ended with code 3"),
    ],
    ids=str,
)
def test_the_death_of_the_building_process_is_told_by_its_cause(
    store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int, found: str
) -> None:
    monkeypatch.setattr(segment_build, "Child", lambda target: Child(_end, code))
    shutil.rmtree(store / "data_aggregation" / (LAST - timedelta(days=1)).isoformat())
    shutil.rmtree(store / "data_aggregation" / (LAST - timedelta(days=20)).isoformat())
    with Database(str(store)) as database:
        rollups = Rollups(database, tmp_path / "cache", lambda text: None, RollupProcess())
        if code in (-signal.SIGKILL, errno.ENOMEM):
            with pytest.raises(ResourceExhausted) as raised:
                rollups.refresh()
            text = str(raised.value)
        else:
            text = rollups.refresh().faults[LAST]
            assert "memory" not in text
    assert found in text and "the process that builds the rollups ended unexpectedly" in text


def test_a_building_process_that_somebody_ended_once_costs_no_day(
    store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ends = iter([True])

    def start(target: Callable[..., None]) -> Child:
        return Child(_end, -signal.SIGTERM) if next(ends, False) else Child(target)

    monkeypatch.setattr(segment_build, "Child", start)
    log: list[str] = []
    with Database(str(store)) as database:
        builder = RollupProcess()
        state = Rollups(database, tmp_path / "cache", log.append, builder).refresh()
        builder.close()
    assert not state.faults and len(state.runs) == 3
    assert any("ended by signal 15" in line for line in log)


@pytest.mark.parametrize("is_first", [True, False])
def test_only_the_first_segments_of_a_store_are_built_at_normal_priority(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_first: bool
) -> None:
    steps: list[int] = []
    monkeypatch.setattr(segment_build.os, "nice", steps.append)
    monkeypatch.setattr(segment_build, "build", lambda days, folder, name: folder / name)
    if not is_first:
        (tmp_path / "2026-01.a.b.duckdb").touch()
    requests = iter([([], tmp_path, "2026-01-15"), ([], tmp_path, "2026-01-14")])
    answers: list[Path] = []

    def recv() -> object:
        try:
            return next(requests)
        except StopIteration:
            raise EOFError from None

    segment_build._serve(SimpleNamespace(recv=recv, send=answers.append))  # type: ignore[arg-type]
    assert answers == [tmp_path / "2026-01-15", tmp_path / "2026-01-14"]
    assert steps == ([] if is_first else [5])


@pytest.mark.parametrize(
    "error",
    [
        OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)),
        OSError("[Errno 28] Error writing bytes to file. Detail: No space left on device"),
        OSError("1000 requested and 512 written"),
    ],
    ids=["system", "Arrow", "NumPy"],
)
def test_a_full_disk_is_named_and_tried_again_after_a_minute(
    store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: OSError
) -> None:
    def fails(*_: object) -> None:
        raise error

    waits: list[float] = []

    class Wake(threading.Event):
        def wait(self, timeout: float | None = None) -> bool:
            waits.append(timeout or 0)
            if len(waits) == 2:
                refresher.stop()
            monkeypatch.undo()
            return True

    monkeypatch.setattr(segment_build, "_build", fails)
    monkeypatch.setattr(segment_build, "_FULL", 1 << 60)
    with Database(str(store)) as database:
        refresher = RollupRefresher(database, tmp_path / "cache")
        refresher._wake = Wake()
        told: list[str] = []
        refresher._log = told.append
        refresher._run()
    assert waits == [60, 2]
    assert any(
        "the rollups cannot be written" in text and "No space left" in text for text in told
    )


@pytest.mark.parametrize("is_alone", [True, False])
def test_a_day_without_rows_is_a_day_of_noughts(tmp_path: Path, is_alone: bool) -> None:
    before = LAST - timedelta(days=1)
    stores.store_day(tmp_path / "store", LAST, [])
    if not is_alone:
        stores.store_day(tmp_path / "store", before, stores.partial_rows(before, count=20))
    state, _ = Refreshed(tmp_path / "store", tmp_path / "cache").refresh()
    loaded = snapshot.load(state)
    chosen = Selection(LAST, LAST)
    assert not state.faults and LAST in loaded.days
    totals = use.totals(loaded, chosen)
    assert (totals["nacc"], totals["users"], totals["read_bytes"]) == (0, 0, None)
    assert not any(
        dataset_ranking.rank_datasets(loaded, replace(chosen, measure=name)).num_rows
        for name in ("nacc", "users", "job_count")
    )
    both = Selection(before, LAST, measure="nacc")
    assert bool(dataset_ranking.rank_datasets(loaded, both).num_rows) != is_alone


def test_sums_beyond_64_bits_are_exact(tmp_path: Path) -> None:
    rows = stores.partial_rows(LAST, count=40)
    for row in rows:
        row["read_bytes"] = (1 << 62) + 1
    unique = {
        (row["stream"], row["dataset_name"], row["site_name"], row["app"]): row for row in rows
    }
    stores.store_day(tmp_path / "store", LAST, list(unique.values()))
    state, _ = Refreshed(tmp_path / "store", tmp_path / "cache").refresh()
    loaded = snapshot.load(state)
    chosen = Selection(LAST, LAST)
    for measure, is_of_jobs in (("read_bytes", False), ("job_read_bytes", True)):
        own = [row for row in unique.values() if (row["stream"] == "condor") == is_of_jobs]
        wanted = {name: 0 for name in sorted({row["dataset_name"] for row in own})}
        for row in own:
            wanted[row["dataset_name"]] += (1 << 62) + 1
        assert len(own) > 4 and max(wanted.values()) > 1 << 63
        assert use.totals(loaded, chosen)[measure] == sum(wanted.values())
        ranking = dataset_ranking.rank_datasets(loaded, replace(chosen, measure=measure))
        names = loaded.named(ranking)["dataset_name"].to_pylist()
        values = ranking["measured"].to_pylist()
        assert dict(zip(names, values, strict=True)) == wanted
        assert values == sorted(wanted.values(), reverse=True)
        numbers = ranking["dataset"].to_numpy()
        sums = dataset_ranking.sum_datasets(loaded, chosen, numbers, [measure])
        assert sums[measure].to_pylist() == values
        name = names[0]
        assert (
            dataset_ranking.load_use(loaded, chosen, name).totals[SUMS.index(measure)]
            == wanted[name]
        )


def test_a_dataset_beside_counts_beyond_64_bits_has_its_last_day_at_each_site(
    tmp_path: Path,
) -> None:
    rows = [
        {**row, "nacc": 1 << 62}
        for row in stores.partial_rows(LAST, count=40)
        if row["stream"] == "aaa"
    ]
    assert len(rows) > 4
    stores.store_day(tmp_path / "store", LAST, rows)
    loaded = snapshot.load(Refreshed(tmp_path / "store", tmp_path / "cache").refresh()[0])
    for row in rows:
        assert dataset_ranking.last_at_sites(loaded, row["dataset_name"])[row["site_name"]] == LAST


def test_counts_of_32_bits_are_summed_in_64(tmp_path: Path) -> None:
    most = (1 << 31) - 1
    rows = [
        {**row, "nacc": most}
        for row in stores.partial_rows(LAST, count=200)
        if row["stream"] != "condor"
    ]
    unique = {(row["stream"], row["dataset_name"]): row for row in rows}
    stores.store_day(tmp_path / "store", LAST, list(unique.values()))
    loaded = snapshot.load(Refreshed(tmp_path / "store", tmp_path / "cache").refresh()[0])
    wanted = Counter(name for _, name in unique)
    assert max(wanted.values()) > 1
    ranking = dataset_ranking.rank_datasets(loaded, Selection(LAST, LAST, measure="nacc"))
    names = loaded.named(ranking)["dataset_name"].to_pylist()
    counts = dict(zip(names, ranking["measured"].to_pylist(), strict=True))
    assert counts == {name: most * count for name, count in wanted.items()}


def test_the_same_question_of_many_is_answered_once(store: Path, tmp_path: Path) -> None:
    state, _ = Refreshed(store, tmp_path / "cache").refresh()
    loaded = snapshot.load(state)
    together, made = threading.Barrier(8), []

    def answer() -> int:
        made.append(threading.get_ident())
        # All others ask while this answer is being made.
        while not all(is_waiting):
            threading.Event().wait(0.001)
        return 42

    is_waiting = [False] * 8
    results: list[int] = []

    def ask(number: int) -> None:
        together.wait()
        is_waiting[number] = True
        results.append(loaded.cached("question", answer))

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=60)
    assert results == [42] * 8 and len(made) == 1


def test_a_question_that_failed_is_asked_again(store: Path, tmp_path: Path) -> None:
    state, _ = Refreshed(store, tmp_path / "cache").refresh()
    loaded = snapshot.load(state)
    with pytest.raises(ZeroDivisionError):
        loaded.cached("question", lambda: 1 // 0)
    assert loaded.cached("question", lambda: 7) == 7


def test_a_dataset_is_found_in_the_row_groups_that_have_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(segment_build, "_ROW_GROUP", 2_048)
    for back in (0, 1):
        day = LAST - timedelta(days=back)
        rows = stores.partial_rows(day, count=9_000, people=400)
        stores.store_day(tmp_path / "store", day, rows)
    state, _ = Refreshed(tmp_path / "store", tmp_path / "cache").refresh()
    loaded = snapshot.load(state)
    chosen = Selection(LAST - timedelta(days=1), LAST)
    every = [
        row
        for back in (0, 1)
        for row in stores.partial_rows(LAST - timedelta(days=back), count=9_000, people=400)
    ]
    for name in sorted({row["dataset_name"] for row in every}):
        own = [row for row in every if row["dataset_name"] == name]
        found = dataset_ranking.load_use(loaded, chosen, name)
        accesses = [row for row in own if row["stream"] != "condor"]
        assert (found.totals[0] or 0) == sum(row["nacc"] for row in accesses)
        assert found.all_users == len({row["user"] for row in accesses} - {None})


def test_people_of_two_pseudonym_keys_have_no_number_together(tmp_path: Path) -> None:
    before = LAST - timedelta(days=1)
    stores.store_day(tmp_path / "store", before, stores.partial_rows(before, count=30, key="old"))
    stores.store_day(tmp_path / "store", LAST, stores.partial_rows(LAST, count=30, key="new"))
    state, _ = Refreshed(tmp_path / "store", tmp_path / "cache").refresh()
    loaded = snapshot.load(state)
    whole = Selection(before, LAST)
    assert use.totals(loaded, whole)["users"] is None
    by_day = use.users_by(loaded, whole)
    assert all(value for value in by_day.values[""]) and by_day.note == ""
    assert use.users_by(loaded, Selection(before, LAST, step="month")).values[""] == [None]


def test_a_store_as_csv_has_the_same_numbers(store: Path, tmp_path: Path) -> None:
    import json

    import pyarrow.parquet as pq
    from pyarrow import csv

    wanted = nacc(Refreshed(store, tmp_path / "cache").refresh()[0])
    for part in (store / "data_aggregation").glob("*/runs/*/partials/*.parquet"):
        csv.write_csv(pq.read_table(part, partitioning=None), part.with_suffix(".csv"))
        part.unlink()
        manifest = part.parents[1] / "manifest.json"
        document = json.loads(manifest.read_text())
        entry = document["tables"]["partials"]
        entry |= {
            "format": "csv",
            "bytes": part.with_suffix(".csv").stat().st_size,
            "sha256": None,
        }
        manifest.write_text(json.dumps(document))
    assert nacc(Refreshed(store, tmp_path / "other").refresh()[0]) == wanted


def test_before_the_first_snapshot_pages_say_that_they_wait(store: Path, tmp_path: Path) -> None:
    refresher = RollupRefresher(Database(str(store)), tmp_path / "cache")
    with pytest.raises(NotReady, match="being built"):
        refresher.snapshot()
    refresher.refresh()
    assert isinstance(refresher.snapshot(), Snapshot) and refresher.freshness.behind == ""
    days = refresher.snapshot().days
    shutil.rmtree(store)
    with pytest.raises(InputMissing, match="there is no store"):
        refresher.refresh()
    assert refresher.snapshot().days == days


def test_pages_that_read_no_rollups_are_there_while_the_first_are_built(
    store: Path, tmp_path: Path
) -> None:
    with Database(str(store)) as database:
        refresher = RollupRefresher(database, tmp_path / "cache")
        pages = create_app(
            Services(refresher, database, tmp_path / "state", Guard())
        ).test_client()
        assert pages.get("/popularity").status_code == 503
        for name in ("runs", "sql", "data"):
            answer = pages.get(f"/{name}")
            assert (answer.status_code, "Rollups of" in answer.text) == (200, False), name
        assert (
            "42" in pages.get("/sql?q=select+6*7", headers={"Sec-Fetch-Site": "same-origin"}).text
        )
        refresher.refresh()
        assert "Rollups of" in pages.get("/popularity").text
        assert "Rollups of" not in pages.get("/runs").text


def test_segments_say_from_which_runs_they_are(store: Path, tmp_path: Path) -> None:
    state, _ = Refreshed(store, tmp_path / "cache").refresh()
    stored = {
        path.parents[1].name: path.name for path in (store / "data_aggregation").glob("*/runs/*")
    }
    loaded = snapshot.load(state)
    assert {
        str(day): run
        for number in range(len(state.segments))
        for day, run in loaded.query(f"SELECT day, run FROM s{number}.days")
    } == stored
