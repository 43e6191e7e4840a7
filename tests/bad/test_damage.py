"""Each byte of small files flipped, and each cut: an error that names the file, or bins
that add up to its lines.
"""

from __future__ import annotations

import gzip
import io
import random
from collections.abc import Iterator
from datetime import date
from functools import cache
from pathlib import Path

import pytest

from cmsspark.base.errors import DataError
from cmsspark.base.schemas import input_table
from cmsspark.sources.formats.sqoop_csv import read_table
from cmsspark.sources.reader import Reader
from tests.bad.make import FORMS, GOOD
from tests.corpus import cases_avro
from tests.corpus.avro_files import CRAB_FIELDS, container
from tests.corpus.json_lines import aaa
from tests.run.places import Place

DAY = date(2019, 6, 15)


def damaged(content: bytes, masks: tuple[int, ...] = (0x01, 0x80, 0xFF)) -> Iterator[bytes]:
    """Each byte flipped in some ways, each byte gone, and each beginning of the content."""
    for at in range(len(content)):
        for mask in masks:
            yield content[:at] + bytes([content[at] ^ mask]) + content[at + 1 :]
        yield content[:at] + content[at + 1 :]
        yield content[:at]


def lines_of(text: bytes) -> int:
    """Records by a plain count: lines that are not blank."""
    return sum(
        bool(line.strip(b" \t"))
        for line in text.removeprefix(b"\xef\xbb\xbf").replace(b"\r\n", b"\n").split(b"\n")
    )


@cache
def reader_of(stream: str) -> Reader:
    """One reader for all files, as a task has."""
    return Reader(stream, FORMS[stream], DAY)


def counted(stream: str, content: bytes, file: str) -> int | None:
    """Records in all bins; None for a file that is refused by its name."""
    read = binned = 0
    try:
        for batch in reader_of(stream).file(io.BytesIO(content), file):
            read += batch.read
            binned += (
                len(batch.unpack().lfns) + len(batch.malformed) + batch.no_lfn + batch.write_only
            )
            binned += sum(batch.out_of_day.values())
    except DataError as error:
        assert error.where == file
        return None
    assert read == binned
    return read


@pytest.mark.parametrize("stream", GOOD)
def test_json_lines_are_all_counted_whatever_byte_is_damaged(stream: str) -> None:
    for content in damaged(b"\n".join([GOOD[stream]()] * 2) + b"\n"):
        assert counted(stream, content, "part-0") == lines_of(content), content


@pytest.mark.parametrize("level", [0, 9])
def test_gzip_is_refused_or_whole_whatever_byte_is_damaged(level: int) -> None:
    packed = gzip.compress(b"\n".join([aaa()] * 3) + b"\n", level, mtime=0)
    refused = 0
    for content in damaged(packed):
        found = counted("aaa", content, "part-0.json.gz")
        refused += found is None
        # What is cut down to nothing is a file of nothing; damage to the header's
        # unused bytes does no harm.
        assert found in (None, 3) or not content
    assert refused > len(packed) * 4


@pytest.mark.parametrize("codec", ["null", "deflate", "snappy"])
def test_avro_is_refused_or_whole_whatever_byte_is_damaged(codec: str) -> None:
    jobs = [{**cases_avro.CRAB, "JobId": str(number)} for number in range(6)]
    content = container(CRAB_FIELDS, jobs, codec=codec, block=3)
    head = len(container(CRAB_FIELDS, [], codec=codec))
    block = (len(content) - head) // 2
    ends = {content[:head]: 0, content[: head + block]: 3}
    # A cut at a block's end leaves a valid file: that cannot be seen in it.
    for changed in damaged(content, (0x01, 0xFF)):
        found = counted("crab", changed, "part-0.avro")
        assert found in (None, 6) or not changed or ends.get(changed) == found, (found, changed)


def test_a_dumps_rows_are_refused_or_all_read_whatever_byte_is_damaged() -> None:
    rows = (
        b"%d,/a/b%d/RAW,1,1,1,1,1,1,1,1,null,null,1.5e9,me,null,null\n" % (number, number)
        for number in range(6)
    )
    for changed in damaged(b"".join(rows)):
        pieces = read_table(
            io.BytesIO(changed), input_table("dbs/DATASETS"), ["dataset_id", "dataset"], "part-0"
        )
        try:
            found = sum(piece.num_rows for piece in pieces)
        except DataError as error:
            assert "part-0" in str(error.where)
            continue
        # An escape before a newline takes it into the value.
        assert found == lines_of(changed) - (b"\\\n" in changed), changed


def harm(content: bytes, rng: random.Random) -> bytes:
    """A byte flipped, or a cut, anywhere."""
    at = rng.randrange(1, len(content))
    return (
        content[:at]
        if rng.random() < 0.3
        else content[:at] + bytes([content[at] ^ rng.randint(1, 255)]) + content[at + 1 :]
    )


def sampled_run(place: Place, seed: int) -> None:
    """A day of four streams with one file damaged: it fails by name, or its bins add up
    to its lines.
    """
    rng = random.Random(seed)
    tree = place.tree
    written: dict[str, list[tuple[Path, bytes]]] = {}
    folders = {"aaa": "aaa enr", "cmssw": "cmssw json", "eos": "eos to 2019"}
    for stream, build in GOOD.items():
        for part in range(2):
            text = b"\n".join([build()] * 12) + b"\n"
            ending = ".json.gz" if part else ".json"
            written.setdefault(stream, []).append(
                (tree.folder(folders[stream]) / f"part-{part}{ending}", text)
            )
    jobs = container(CRAB_FIELDS, [cases_avro.CRAB] * 12, codec="snappy", block=4)
    written["crab"] = [(tree.folder("crab avro") / "part-0.avro", jobs)]
    for stream in written:
        for path, text in written[stream]:
            path.write_bytes(gzip.compress(text) if path.suffix == ".gz" else text)
    stream = rng.choice(sorted(written))
    path, _ = rng.choice(written[stream])
    before = path.read_bytes()
    path.write_bytes(harm(before, rng))
    lines = {
        name: sum(lines_of(text) for _, text in found)
        for name, found in written.items()
        if name != "crab"
    }
    lines["crab"] = 12
    try:
        assert place.run("data_aggregation", "--max-malformed", "100%") == 0
    except DataError as error:
        assert path.name in str(error) or f"{stream} is of another schema" in str(error)
        return
    if path.suffix == ".json":
        lines[stream] += lines_of(path.read_bytes()) - lines_of(before)
    found = place.manifest("partials")["reconciliation"]
    told = {name: one["read"] for name, one in found.items()}
    assert told == lines or (stream == "crab" and told["crab"] in (4, 8))
    for one in found.values():
        rest = (
            sum(one["unmatched"].values())
            + one["malformed"]
            + one["out_of_day"]
            + one["write_only"]
            + one.get("deletion", 0)
            + one.get("repeated", 0)
        )
        assert one["read"] == one["matched"] + rest


@pytest.mark.parametrize("seed", range(4))
def test_a_run_on_a_damaged_day_fails_by_name_or_adds_up(
    spark: object, tmp_path: Path, seed: int
) -> None:
    sampled_run(Place(tmp_path), seed)


@pytest.mark.long
@pytest.mark.parametrize("seed", range(4, 34))
def test_more_runs_on_damaged_days_fail_by_name_or_add_up(
    spark: object, tmp_path: Path, seed: int
) -> None:
    sampled_run(Place(tmp_path), seed)
