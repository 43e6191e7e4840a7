"""Findings on a corpus of scripts, half of them built to go wrong: precision and recall
of each code.
"""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from bench import findings as corpus
from cmsspark.apps.monitor.findings import codes

LABELS = corpus.labels()
#: Codes that take a cluster, or words of YARN, to be seen: their texts are in test_findings.py.
#: ``large_broadcast`` takes more memory than a test has.
ON_CLUSTERS = {
    *("driver_unreachable", "executor_too_large", "py4j_object"),
    *("large_broadcast", "python_memory_limit"),
}


def test_half_of_the_scripts_are_healthy_and_every_code_has_a_script() -> None:
    healthy = [name for name, label in LABELS.items() if label == "nothing"]
    assert len(LABELS) >= 60 and 0.4 <= len(healthy) / len(LABELS) <= 0.6
    assert set(LABELS.values()) - {"nothing"} == codes() - ON_CLUSTERS


def test_each_finding_is_right_nine_times_in_ten() -> None:
    scores = corpus.scores({name: corpus.codes(corpus.kept(name)) for name in LABELS}, LABELS)
    weak = [line for line in corpus.table(scores) if "false in" in line or "missed in" in line]
    assert all(min(score.precision, score.recall) >= corpus.LEAST for score in scores.values()), (
        weak
    )


@pytest.mark.parametrize(
    "file",
    ["/usr/lib/python3.11/site-packages/frames/rdd.py", "/srv/cmsspark/cmsspark/run/spark.py"],
)
def test_what_a_library_caches_is_none_of_the_script(file: str) -> None:
    script = b"NativeMethodAccessorImpl.java"
    lines = list(corpus.find_log(str(corpus.LOGS / "persisted_once.zst")))
    assert corpus.codes(corpus.metrics_of(lines)) == {"cached_unused"}
    assert any(script in line for line in lines)
    of_library = [line.replace(script, file.encode()) for line in lines]
    assert not corpus.codes(corpus.metrics_of(of_library))


def test_a_program_in_python_caches_nothing_in_scala() -> None:
    lines = list(corpus.find_log(str(corpus.LOGS / "persisted_once.zst")))
    site = rb'("Callsite":"\w+ at )NativeMethodAccessorImpl\.java'
    for file, expected in ((b"RowMatrix.scala", set()), (b"PythonRDD.scala", {"cached_unused"})):
        moved = [re.sub(site, rb"\g<1>" + file, line) for line in lines]
        assert moved != lines and corpus.codes(corpus.metrics_of(moved)) == expected


#: Runs of which thinning leaves too little: of the worker two samples.
UNDECIDED = {("worker_leak", 10, 4)}
#: What Python pickles for a job is told from that of the next one by samples each second.
EACH_SECOND = {"closure_large"}


def test_fewer_samples_of_a_run_change_no_finding() -> None:
    """A long run is sampled less often: each interval up to 10 s, from each second on."""
    changed = set()
    for name in filter(corpus.needs_samples, LABELS.keys() - EACH_SECOND):
        run = corpus.kept(name)
        samples, expected = run.samples, corpus.codes(run)
        for interval, phase in ((i, p) for i in range(2, 11) for p in range(i)):
            thinned, due = [], samples[0].at_ms + 1000 * phase
            for sample in samples:
                # A sample is some milliseconds late; the last one is taken at the end.
                if sample.at_ms >= due - 100 or sample is samples[-1]:
                    thinned.append(sample)
                    due = max(due + 1000 * interval, sample.at_ms - 500)
            run.samples = thinned
            if corpus.codes(run) != expected:
                changed.add((name, interval, phase))
    assert changed <= UNDECIDED


def test_the_kept_logs_are_small_and_name_nobody() -> None:
    files = list(corpus.LOGS.iterdir())
    assert sum(file.stat().st_size for file in files) < 3_000_000
    for name in LABELS:
        text = json.dumps(
            [str(line) for line in corpus.find_log(str(corpus.LOGS / f"{name}.zst"))]
        )
        assert str(corpus.TOP) not in text and f'"{Path.home()}/' not in text


def test_a_score_counts_what_is_false_and_what_is_missed() -> None:
    expected = {"a": "spill", "b": "spill", "c": "nothing", "d": "gc"}
    scores = corpus.scores(
        {"a": {"spill"}, "b": set(), "c": {"spill"}, "d": {"gc", "spill"}}, expected
    )
    assert (scores["spill"].precision, scores["spill"].recall) == (1 / 3, 0.5)
    assert scores["spill"].false == ["c", "d"] and scores["spill"].missed == ["b"]
    assert (scores["gc"].precision, scores["gc"].recall) == (1.0, 1.0)


@pytest.mark.long
def test_the_scripts_run_again_give_the_same_findings(tmp_path: Path) -> None:
    list(corpus.record(LABELS, tmp_path))
    scores = corpus.scores(
        {name: corpus.codes(corpus.kept(name, tmp_path)) for name in LABELS}, LABELS
    )
    weak = [line for line in corpus.table(scores) if "false in" in line or "missed in" in line]
    assert all(min(score.precision, score.recall) >= corpus.LEAST for score in scores.values()), (
        weak
    )
