"""Rules 29 to 33 of ``docs/counting.md`` over hand-written records: what the package
and the oracle make of each.
"""

from __future__ import annotations

import io
from collections import Counter
from collections.abc import Iterable
from datetime import timedelta
from functools import cache
from pathlib import Path

import numpy as np
import pytest

from cmsspark.base.access import AccessBatch
from cmsspark.counting.htcondor_jobs import HtcondorMerge, id_hashes, rank
from cmsspark.sources.formats import strict_json
from cmsspark.sources.reader import Reader
from tests.corpus import jobs, tables
from tests.corpus.cases import failures
from tests.corpus.hostile import DAY
from tests.oracle import catalogue
from tests.oracle import jobs as oracle

CASES = [(case.name, case) for case in jobs.cases()]


@cache
def _catalogue() -> oracle.JobCatalogue:
    names = {row[0]: row[1] for row in tables.DATASETS}
    found = oracle.JobCatalogue(
        {row[1]: names[row[2]] for row in tables.BLOCKS}, set(names.values())
    )
    for row in tables.REPLICAS:
        site, kind = catalogue.site_and_kind(row[13])
        if kind == "disk" and row[20] not in ("0", "null"):
            found.disk.add((row[6], site))
    return found


def _by_oracle(case: jobs.JobCase) -> tuple[Counter[str], list[tuple[object, ...]]]:
    count = oracle.count_jobs(case.lines, DAY, case.before, _catalogue())
    return +count.bins, [
        tuple(_value(job, what) for what in case.what) for job in count.jobs if case.what
    ]


def _value(job: oracle.Job, what: str) -> object:
    record = job.record
    return {
        "input": job.input,
        "dataset": job.dataset,
        "block": job.block,
        "remote": job.remote,
        "site": record.site_name,
        "user": record.user_name,
        "app": record.app,
        "status": record.status,
        "time": record.time_ms,
        "wall": oracle.milliseconds(record.wall),
        "cpu": oracle.milliseconds(record.cpu),
        "bytes": record.read_bytes,
        "exit": record.exit_code,
        "raw_block": record.block,
        "raw_dataset": record.dataset,
        "workflow": record.workflow,
    }[what]


def test_rules_29_to_33_the_oracle_counts_each_case_as_it_is_written() -> None:
    def check(case: jobs.JobCase) -> None:
        bins, counted = _by_oracle(case)
        assert bins == case.bins
        assert counted == list(case.counted)

    assert len(CASES) > 200 and failures(CASES, check) == []


def _decoded(lines: Iterable[bytes], day: object, *, is_fast: bool) -> AccessBatch:
    reader = Reader("condor", "json", day)  # type: ignore[arg-type]
    if not is_fast:
        reader.decoder._fast_lines = None
    whole = AccessBatch()
    for batch in reader.file(io.BytesIO(b"".join(line + b"\n" for line in lines)), "case"):
        whole.jobs += batch.jobs
        whole.malformed += batch.malformed
        whole.read += batch.read
        for name, count in batch.job_bins.items():
            whole.count_job(name, count)
        for number, count in batch.out_of_day.items():
            whole.out_of_day[number] = whole.out_of_day.get(number, 0) + count
    return whole


def _check_decoder(case: jobs.JobCase, *, is_fast: bool) -> None:
    """Check the bins of a case and the record of each job that counts."""
    batch = _decoded(case.lines, DAY, is_fast=is_fast)
    early = {
        **batch.job_bins,
        "malformed": len(batch.malformed),
        "out_of_day": sum(batch.out_of_day.values()),
    }
    wanted = {
        name: case.bins.get(name, 0)
        for name in ("malformed", "out_of_day", "not_final", "other_type", "never_ran")
    }
    assert {name: early.get(name, 0) for name in wanted} == wanted
    assert batch.read == len(case.lines)
    before = {
        job.job_id for job in _decoded(case.before, DAY - timedelta(days=1), is_fast=is_fast).jobs
    }
    best = {}
    for job in batch.jobs:
        if job.job_id not in before:
            best[job.job_id] = max(best.get(job.job_id, job), job, key=rank)
    assert len(batch.jobs) - len(best) == case.bins.get("repeated", 0)
    of_job = {
        "site": "site",
        "user": "user",
        "app": "app",
        "time": "time_ms",
        "wall": "wall_ms",
        "cpu": "cpu_ms",
        "bytes": "read_bytes",
        "exit": "exit_code",
        "raw_block": "data_block",
        "raw_dataset": "desired_dataset",
        "workflow": "workflow",
    }
    for job, values in zip(best.values(), case.counted, strict=False):
        for what, value in zip(case.what, values, strict=True):
            if what in of_job:
                assert getattr(job, of_job[what]) == value, what
            elif what == "status":
                assert job.is_completed == (value == "Completed")


@pytest.mark.parametrize("is_fast", [True, False], ids=["compiled", "plain"])
def test_rules_29_to_31_the_decoder_bins_each_case_and_keeps_the_record_that_counts(
    is_fast: bool,
) -> None:
    assert failures(CASES, lambda case: _check_decoder(case, is_fast=is_fast)) == []


def test_rule_29_the_fast_way_and_the_letter_agree_on_lines_at_random() -> None:
    lines = jobs.lines_at_random(7, DAY, 3000, 800)
    fast, plain = (_decoded(lines, DAY, is_fast=is_fast) for is_fast in (True, False))
    assert (Counter(fast.jobs), fast.job_bins, fast.out_of_day) == (
        Counter(plain.jobs),
        plain.job_bins,
        plain.out_of_day,
    )
    assert fast.malformed == plain.malformed
    decoder = Reader("condor", "json", DAY).decoder
    strict = AccessBatch()
    for line in lines:
        try:
            decoder.take([decoder.strict(strict_json.parse_object(line))], strict)
        except ValueError:
            continue
    assert Counter(strict.jobs) == Counter(fast.jobs)
    assert strict.job_bins == fast.job_bins


def test_rule_31_an_id_has_one_hash_of_64_bits(tmp_path: Path) -> None:
    hashes = id_hashes([f"job-{number}" for number in range(1000)])
    assert hashes.dtype == np.int64
    assert len(set(hashes.tolist())) == 1000
    assert hashes.min() < 0 < hashes.max()
    assert HtcondorMerge.__doc__
