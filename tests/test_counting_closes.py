"""Rules 41 to 46 of ``docs/counting.md`` over hand-written records: what the package
and the oracle make of each.
"""

from __future__ import annotations

import io
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from cmsspark.base.access import AccessBatch
from cmsspark.run.log_day import run
from cmsspark.run.request import DayRequest
from cmsspark.settings.settings import Settings
from cmsspark.sources.reader import Reader
from tests.apps.usage.test_data_aggregation_cells import REPORT_KEY, _same_rows
from tests.corpus import closes, judged
from tests.corpus.cases import Expected, failures
from tests.corpus.hostile import DAY
from tests.corpus.tree import Tree, write_case_tables
from tests.oracle.catalogue import read_catalogue
from tests.oracle.closes import read_close
from tests.oracle.count import StreamCount, count_record, report_rows
from tests.oracle.records import bin_of

CASES = closes.cases()


def _by_oracle(lines: Iterable[bytes]) -> StreamCount:
    counted = StreamCount()
    for line in lines:
        count_record(lambda line=line: read_close(line), DAY, judged.case_catalogue(), counted)  # type: ignore[misc]
    return counted


def _by_decoder(lines: Iterable[bytes], *, is_fast: bool = True) -> StreamCount:
    reader = Reader("aaa", "aaa-ng", DAY)
    if not is_fast:
        reader.decoder._fast_lines = None
    counted = StreamCount()
    content = b"".join(line + b"\n" for line in lines)
    for batch in map(AccessBatch.unpack, reader.file(io.BytesIO(content), "case")):
        judged._check_columns(batch)
        counted.bins["malformed"] += len(batch.malformed)
        counted.bins["write_only"] += batch.write_only
        counted.bins["no_lfn"] += batch.no_lfn
        for number, count in batch.out_of_day.items():
            counted.bins["out_of_day"] += count
            counted.other_days[judged._day(number)] += count
        for record in judged._records(batch, reader.groups):
            found = bin_of(record, DAY, judged.case_catalogue().files.__contains__)
            counted.bins[found] += 1
            if found == "matched":
                counted.accesses.append(judged.access_of(record, judged.case_catalogue()))
    return counted


def _one(counted: StreamCount) -> Expected:
    return judged._one(counted)


def form_of(case: closes.CloseCase) -> str:
    """Return the form of a record: with its fields on top, below ``data``, or another."""
    prefix = case.name.partition(": ")[0]
    return prefix if prefix in ("flat", "data") else "other"


@pytest.mark.parametrize("form", ["flat", "data", "other"])
def test_rules_41_to_46_the_oracle_and_both_decoders_count_each_case_as_it_is_written(
    form: str,
) -> None:
    def check(case: closes.CloseCase) -> None:
        assert _one(_by_oracle([case.line])) == case.expected
        assert _one(_by_decoder([case.line])) == case.expected
        assert _one(_by_decoder([case.line], is_fast=False)) == case.expected

    cases = [(case.name, case) for case in CASES if form == form_of(case)]
    assert len(cases) > 15 and failures(cases, check) == []


def test_rule_42_forms_may_be_mixed_and_keys_come_in_any_order() -> None:
    lines = closes.lines_at_random(3, 3000) + [case.line for case in CASES]
    wanted = _by_oracle(lines)
    for is_fast in (True, False):
        assert judged.same(_by_decoder(lines, is_fast=is_fast), wanted)


def test_rules_41_to_47_every_cell_of_a_day_is_the_oracles(tmp_path: Path) -> None:
    tree = Tree(tmp_path / "root", DAY)
    write_case_tables(tree.dbs(), tree.phedex())
    lines = closes.lines_at_random(4, 2000)
    tree.write_lines("aaa-ng", lines, parts=4)
    settings = Settings(
        None,
        None,
        tmp_path / "state",
        tmp_path / "cache",
        sources={"epochs": {"aaa": {"aaa-ng": {"from": "2019-06-01"}}}},
    )
    request = DayRequest(
        "dbs_aaa",
        DAY,
        str(tmp_path / "store"),
        settings,
        root=str(tree.root),
        streams=("aaa",),
        tables=("dbs_aaa",),
        max_malformed="100%",
    )
    done = run(request, log=lambda text: None)
    counted = StreamCount()
    catalogue = read_catalogue(tree.root, DAY)
    for line in lines:
        count_record(lambda line=line: read_close(line), DAY, catalogue, counted)  # type: ignore[misc]
    assert done.manifest.reconciliation == {"aaa": counted.reconciliation()}
    rows = pq.read_table(Path(done.path) / "dbs_aaa").to_pylist()
    _same_rows(rows, report_rows({"aaa": counted}, DAY), REPORT_KEY)
    assert Counter(row["remote_nacc"] is None for row in rows).keys() == {True, False}
    assert done.manifest.inputs[0].format_name == "aaa-ng"
