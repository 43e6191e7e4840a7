"""Each file of the corpus falls into its bins, or is refused by name with what is wrong."""

from __future__ import annotations

import io
import json
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from cmsspark.base import errors
from cmsspark.base.errors import DataError
from cmsspark.sources.reader import Reader
from tests.bad import make
from tests.bad.make import Bad
from tests.corpus.cases import failures
from tests.corpus.hostile import DAY
from tests.run.places import Place

FILES = make.small()
STREAMS = sorted({bad.stream for bad in FILES})
FOLDERS = {"aaa": "aaa enr", "cmssw": "cmssw json", "eos": "eos to 2019", "crab": "crab avro"}


def bins_of(bad: Bad, *, accept_damaged: bool = False) -> dict[str, int]:
    """Records by bin, every access as matched."""
    reader = Reader(bad.stream, make.FORMS[bad.stream], DAY)
    found: Counter[str] = Counter()
    read = 0
    for batch in reader.file(io.BytesIO(bad.content), bad.file, accept_damaged=accept_damaged):
        read += batch.read
        found["matched"] += len(batch.unpack().lfns)
        found["malformed"] += len(batch.malformed)
        found["no_lfn"] += batch.no_lfn
        found["write_only"] += batch.write_only
        found["out_of_day"] += sum(batch.out_of_day.values())
    assert found.total() == read
    return dict(+found)


def files_of(stream: str) -> list[tuple[str, Bad]]:
    """Return the files of a stream with their names."""
    return [(str(bad), bad) for bad in FILES if bad.stream == stream]


@pytest.mark.parametrize("stream", STREAMS)
def test_each_bad_file_falls_into_its_bins_or_is_refused_by_name(stream: str) -> None:
    def check(bad: Bad) -> None:
        if bad.bins is not None:
            assert bins_of(bad) == +Counter(bad.bins)
            return
        error = refusal(bad)
        for words in bad.error:
            assert words in error

    assert failures(files_of(stream), check) == []


def refusal(bad: Bad, *, accept_damaged: bool = False) -> str:
    """Return what the refusal of a file says. Raises AssertionError where it is read."""
    try:
        found = bins_of(bad, accept_damaged=accept_damaged)
    except DataError as error:
        return str(error)
    raise AssertionError(f"not refused: {found}")


@pytest.mark.parametrize("stream", STREAMS)
def test_acceptance_changes_nothing_for_whole_files_and_makes_no_malformed_ones_of_damaged(
    stream: str,
) -> None:
    def check(bad: Bad) -> None:
        if bad.bins is not None:
            assert bins_of(bad, accept_damaged=True) == +Counter(bad.bins)
        elif bad.name in ("another schema", "no fields"):
            refusal(bad, accept_damaged=True)
        else:
            assert set(bins_of(bad, accept_damaged=True)) <= {"matched"}

    assert failures(files_of(stream), check) == []


def test_the_corpus_is_written_with_its_expectations(tmp_path: Path) -> None:
    subprocess.run([sys.executable, make.__file__, str(tmp_path)], check=True)
    told = json.loads((tmp_path / "expected.json").read_text(encoding="utf-8"))
    assert len(told) == len(make.corpus()) > 200
    for one in told[:50]:
        assert (tmp_path / one["file"]).is_file()
        assert (one["bins"] is None) == bool(one["error"])


@pytest.mark.parametrize("feed", ["direct", "spark"])
def test_all_files_that_have_bins_make_a_day_with_their_sums(
    spark: object, tmp_path: Path, feed: str
) -> None:
    place = Place(tmp_path)
    wanted: dict[str, Counter[str]] = {}
    # Hadoop tells gzip by its name: through Spark such a file is lines of garbage,
    # which the tolerance stops.
    left_out = "gzip not named so" if feed == "spark" else ""
    accepted = []
    for number, bad in enumerate(
        bad for bad in FILES if bad.bins is not None and bad.name != left_out
    ):
        place.tree.folder(FOLDERS[bad.stream]).joinpath(f"{number:03}-{bad.file}").write_bytes(
            bad.content
        )
        # A part whose only line is malformed counts within the tolerance.
        if set(+Counter(bad.bins)) == {"malformed"} and sum(bad.bins.values()) > 1:
            accepted += ["--accept-damaged", f"{number:03}-{bad.file}"]
        else:
            wanted.setdefault(bad.stream, Counter()).update(bad.bins or {})
    assert place.run("data_aggregation", "--max-malformed", "100%", "--feed", feed, *accepted) == 0
    for stream, found in place.manifest("partials")["reconciliation"].items():
        in_dbs_or_not = (
            found["matched"] + sum(found["unmatched"].values()) - found["unmatched"]["no_lfn"]
        ) + found.get("repeated", 0)
        told = {
            "matched": in_dbs_or_not,
            "no_lfn": found["unmatched"]["no_lfn"],
            **{name: found[name] for name in ("malformed", "out_of_day", "write_only")},
        }
        assert +Counter(told) == +wanted[stream], stream


REFUSED = (
    "aaa-gzip_cut_at_byte_10",
    "eos-gzip_cut_in_its_second_member",
    "cmssw-text_named_gz",
    "crab-Avro_of_snappy_with_another_sync_marker",
    "crab-a_block_that_names_too_few_records",
    "crab-a_snappy_block_of_another_CRC",
)


@pytest.mark.parametrize("name", REFUSED)
def test_a_refused_file_fails_the_run_by_name_and_no_result_is_stored(
    spark: object, tmp_path: Path, name: str
) -> None:
    (bad,) = (bad for bad in FILES if str(bad) == name)
    place = Place(tmp_path)
    place.tree.folder(FOLDERS[bad.stream]).joinpath(bad.file).write_bytes(bad.content)
    error = place.fails(DataError, f"dbs_{bad.stream}")
    assert error.exit_code == 65
    assert str(place.tree.folder(FOLDERS[bad.stream]) / bad.file) in str(error)
    with pytest.raises(errors.InputMissing):
        place.manifest(f"dbs_{bad.stream}")
