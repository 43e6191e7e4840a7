"""The page Spark: numbers of a measured run and of its watched processes, in a real
Chromium, also of hostile ones.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cmsspark.apps.dashboard import run_index
from cmsspark.apps.dashboard import spark_parts as parts
from cmsspark.store import lease
from cmsspark.store.process_samples import LogEntry, ProcessSample, WatchedRun, open_processes
from cmsspark.store.run_metrics import RunMetrics, StageEntry, TaskTotals
from tests.apps.dashboard.conftest import Running, serving

AXE = Path(__file__).parent / "axe-4.14.1.min.js"
BEGAN = 1_768_460_000_000
MB = 1_000_000


def stored_run(state: Path, /, run: str = "20260115T060000Z-aaaaaa", **more: Any) -> None:
    """A measured run of 20 s with two stages, two executors, and a driver whose Python grows."""
    stages = [
        {
            "stage": 0,
            "name": "<b>load</b>",
            "task_count": 4,
            "submitted_ms": BEGAN + 1_000,
            "completed_ms": BEGAN + 5_000,
            "totals": {"tasks": 4, "run_ms": 4_000, "gc_ms": 400, "input_bytes": 80 * MB},
        },
        {
            "stage": 1,
            "attempt": 1,
            "name": "join",
            "task_count": 8,
            "submitted_ms": BEGAN + 5_000,
            "completed_ms": BEGAN + 15_000,
            "failure": "lost\ntrace",
            "totals": {
                "tasks": 8,
                "failed_tasks": 2,
                "run_ms": 9_000,
                "shuffle_read_bytes": 7 * MB,
            },
        },
    ]
    executors = [
        {
            "executor": "driver",
            "host": "h",
            "peaks": {"JVMHeapMemory": 300 * MB, "ProcessTreeJVMRSSMemory": 900 * MB},
        },
        {
            "executor": "1",
            "host": "n1",
            "cores": 4,
            "peaks": {"JVMHeapMemory": 700 * MB, "OnHeapStorageMemory": 5 * MB},
            "totals": {"tasks": 12, "run_ms": 13_000, "gc_ms": 1_300},
        },
    ]
    samples = [
        {
            "at_ms": BEGAN + 1_000 * n,
            "driver_jvm_rss": 800 * MB,
            "driver_python_rss": (50 + 40 * n) * MB,
            "active_tasks": n % 5,
        }
        for n in range(20)
    ]
    document = {
        "run": run,
        "job": "job.py",
        "engine": "spark",
        "began_ms": BEGAN,
        "ended_ms": BEGAN + 20_000,
        "state": "DONE",
        "root_pid": 100,
        "application": "app-1",
        "spark_version": "4.1.1",
        "master": "yarn",
        "stage_count": 2,
        "totals": {
            "tasks": 12,
            "failed_tasks": 2,
            "task_ms": 20_000,
            "run_ms": 13_000,
            "cpu_ms": 6_000,
            "gc_ms": 1_700,
            "input_bytes": 80 * MB,
            "shuffle_write_bytes": 7 * MB,
        },
        "stages": stages,
        "executors": executors,
        "samples": samples,
        "cpu_ms": 11_000,
        "later_field": {"x": 1},
        "findings": [
            {"code": "x", "title": "The Python driver grew", "where": "10 s", "cure": "Use Arrow"}
        ],
        **more,
    }
    folder = state / "monitor" / "runs" / run
    folder.mkdir(parents=True)
    (folder / "run.json").write_text(json.dumps(document))


def watched_run(state: Path) -> None:
    """The processes of that run, and a run of a suite that was not measured."""
    tree = {
        100: (1, "java_driver", 800),
        101: (100, "python_driver", 50),
        102: (100, "python_daemon", 40),
        103: (102, "python_worker", 60),
        104: (104, "other", 1),
    }
    with open_processes(state) as database:
        for run, root, suite in (("w1", 100, None), ("w2", 0, "release")):
            database.put_run(
                WatchedRun(
                    run,
                    BEGAN + (0 if root else 1_000_000),
                    "h",
                    "job.py",
                    BEGAN + 20_000,
                    suite,
                    None,
                    "DONE",
                    0,
                    root,
                    "1.0" if suite else None,
                )
            )
            samples = [
                ProcessSample(
                    run,
                    BEGAN + 1_000 * tick,
                    "h",
                    pid,
                    ppid,
                    5,
                    role,
                    150.0 if pid == 103 else 10.0,
                    tick / 10,
                    tick,
                    (size + (40 * tick if pid == 101 else 0)) * MB,
                    size * MB,
                    None,
                    None,
                    None,
                    2 * size * MB,
                    short_command=f"<i>{role}</i>",
                    long_command=f"{role} ***" if not tick else None,
                )
                for tick in range(20)
                for pid, (ppid, role, size) in tree.items()
            ]
            database.add(samples, [LogEntry(run, BEGAN, "mark", "begin <u>load</u>", "h")])


@pytest.fixture(scope="module")
def runs(store: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    folder = tmp_path_factory.mktemp("spark-page")
    stored_run(folder / "state")
    watched_run(folder / "state")
    broken = folder / "state" / "monitor" / "runs" / "20260101T000000Z-broken"
    broken.mkdir()
    (broken / "run.json").write_text("{")
    with serving(store, folder) as running:
        yield running


def test_the_page_of_a_run_is_drawn_and_accessible(page: Any, runs: Running) -> None:
    for theme, width in (("light", 1280), ("dark", 390)):
        page.emulate_media(color_scheme=theme)
        page.set_viewport_size({"width": width, "height": 850})
        page.goto(f"{runs.base}/spark?run=20260115T060000Z-aaaaaa")
        page.wait_for_selector("html[data-drawn]", state="attached")
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        charts = page.locator("figure.chart").count()
        assert charts == int(page.evaluate("document.documentElement.dataset.drawn")) == 7
        page.evaluate(AXE.read_text(encoding="utf-8"))
        found = page.evaluate("axe.run(document, {resultTypes: ['violations']})")
        assert [
            (one["id"], [node["html"][:150] for node in one["nodes"][:3]])
            for one in found["violations"]
        ] == []
    text = page.locator("main").inner_text()
    assert "The Python driver grew" in text and "app-1" in text and "<b>load</b>" in text
    assert "<u>load</u>" in text and "<i>python_driver</i>" in text
    assert "was left out" in text  # the damaged run


def test_the_cpu_of_several_cores_is_drawn_to_its_top(page: Any, runs: Running) -> None:
    page.goto(f"{runs.base}/spark?run=20260115T060000Z-aaaaaa")
    page.wait_for_selector("html[data-drawn]", state="attached")
    marks = page.locator('figure[data-chart*=\'"name": "cpu"\'] svg text.end').all_text_contents()
    assert max(float(mark.split()[0]) for mark in marks if mark) >= 150


def test_stages_of_a_short_run_have_times_of_their_own() -> None:
    entry = StageEntry(stage=0, name="load", submitted_ms=BEGAN + 300, completed_ms=BEGAN + 340)
    measured = RunMetrics("r", "job.py", "processes", began_ms=BEGAN, stages=[entry])
    labels = parts.stage_timeline(measured).labels
    assert labels[:2] == ["0.300", "0.301"] and len(set(labels)) == len(labels)


def test_one_page_names_what_a_share_of_garbage_collection_is_of() -> None:
    measured = RunMetrics("r", "job.py", "spark", began_ms=BEGAN, ended_ms=BEGAN - 5)
    measured.totals = TaskTotals(tasks=1, task_ms=4_000, run_ms=2_000, gc_ms=1_000)
    figures = parts.figures(run_index.RunView(run_index.RunChoice("r", "r", 0), measured)).figures
    (gc,) = (figure for figure in figures if figure.label == "Garbage collection")
    assert (gc.value, gc.note) == ("50.0%", "of the run time of tasks")
    assert parts.time_components(measured).rows[1][2] == 0.25, "of all their time"
    assert figures[1].value == "0.0", "a clock that was set back is no negative time"


def test_hosts_that_look_at_times_of_their_own_add_up() -> None:
    looks = ((0, "a", 7, 10), (400, "b", 7, 30), (1_000, "a", 7, 20), (1_400, "b", 7, 40))
    samples = [
        ProcessSample("w", at, host, pid, 1, 5, "python_worker", rss_bytes=size * MB)
        for at, host, pid, size in looks
    ]
    view = run_index.RunView(run_index.RunChoice("r", "r", 0), None, samples=samples)
    assert parts.figures(view).figures[-1].note == "all processes, the most of 4 looks", (
        "a process may have had more"
    )
    times, sums = run_index.by_role(samples, "rss_bytes")
    assert times == [0, 400, 1_000, 1_400]
    # The last look of each host is the end of what is known of it.
    assert sums == {"python_worker": [10 * MB, 40 * MB, 50 * MB, 40 * MB]}
    chart = parts.top_processes(
        run_index.RunView(run_index.RunChoice("w", "w", 0), samples=samples)
    )
    assert chart.series == {
        "7 python_worker b": [None, 30 * MB, 30 * MB, 40 * MB],
        "7 python_worker a": [10 * MB, 10 * MB, 20 * MB, None],
    }


def test_another_run_is_chosen_by_the_selector(page: Any, runs: Running) -> None:
    page.goto(f"{runs.base}/spark")
    page.wait_for_selector("html[data-drawn]", state="attached")
    assert "suite release" in page.locator("h1").inner_text()  # the latest
    page.select_option("#c-run", "20260115T060000Z-aaaaaa")
    page.wait_for_url("**run=20260115T060000Z-aaaaaa**")
    page.wait_for_selector("h1:text('app-1')", state="attached")


def test_an_unknown_run_is_refused_and_no_path_leads_out(page: Any, runs: Running) -> None:
    for run in ("none", "../../etc/passwd", "20260101T000000Z-broken"):
        answer = page.request.get(f"{runs.base}/spark", params={"run": run})
        assert answer.status == 400


def test_the_numbers_are_those_that_are_stored(runs: Running) -> None:
    state = runs.server.services.state_dir
    notes: list[str] = []
    choices = run_index.choices(state, notes)
    assert [one.run for one in choices] == ["w2", "20260115T060000Z-aaaaaa"] and len(notes) == 1
    view = run_index.read_run_view(state, choices[1])
    assert view.measured is not None and view.watched is not None and view.watched.run == "w1"
    roles = parts.roles_over_time(view, "rss_bytes")
    assert roles.series["python_driver"] == [(50 + 40 * tick) * MB for tick in range(20)]
    assert roles.labels[0] == "0" and roles.labels[-1] == "19"
    areas = parts.memory_areas(view.measured)
    assert areas.labels == ["JVM heap", "storage, on heap", "resident: JVM"]
    assert areas.series == {
        "driver": [300 * MB, None, 900 * MB],
        "executor 1": [700 * MB, 5 * MB, None],
    }
    longest, shorter = parts.stages(view.measured).visible
    assert longest[:6] == ("1.1", "join", 5.0, 10.0, 8, 2) and longest[-1] == "lost"
    assert shorter[8] == 20 * MB  # read each second
    times = {row[0]: row[1:] for row in parts.time_components(view.measured).rows}
    assert times["CPU in the JVM"] == (6.0, 0.3) and times[
        "CPU of all processes of this host"
    ] == (11.0, 0.55)
    timeline = parts.stage_timeline(view.measured)
    assert list(timeline.series) == ["0.0 <b>load</b>", "1.1 join"]
    assert sum(timeline.series["1.1 join"]) > 2 * sum(timeline.series["0.0 <b>load</b>"])  # type: ignore[arg-type]
    tree = [row[0] for row in parts.process_tree(view).visible]
    assert tree == [
        "100 <i>java_driver</i>",
        "· 101 <i>python_driver</i>",
        "· 102 <i>python_daemon</i>",
        "· · 103 <i>python_worker</i>",
        "104 <i>other</i>",
    ]


def test_a_number_of_a_process_that_was_used_again_does_not_join_two_runs(tmp_path: Path) -> None:
    watched_run(tmp_path)
    stored_run(tmp_path, "late", began_ms=BEGAN + 10_000_000)
    (late, *_) = run_index.choices(tmp_path, [])
    assert late.run == "late" and late.watched is None


def test_a_run_whose_process_was_killed_has_failed(tmp_path: Path) -> None:
    # No process with the number of this one began at the boot.
    process = {**lease.identity(), "started": -1}
    stored_run(tmp_path, state="RUNNING", application=None, process=process)
    (choice,) = run_index.choices(tmp_path, [])
    view = run_index.read_run_view(tmp_path, choice)
    assert choice.label == "job.py FAILED" and view.measured is not None
    assert parts.figures(view).figures[0].value == "FAILED"
    assert view.measured.notes == ["run_spark was killed: what was measured until then is shown"]


def test_a_run_of_a_later_format_is_shown_with_a_note(tmp_path: Path) -> None:
    stored_run(tmp_path, format=99)
    (choice,) = run_index.choices(tmp_path, [])
    view = run_index.read_run_view(tmp_path, choice)
    assert view.measured is not None
    assert view.measured.notes == ["format 99 of a later version: what it adds is not shown"]


def test_a_host_without_any_run_says_so(tmp_path: Path) -> None:
    assert run_index.choices(tmp_path, []) == []
