"""CPU time of a record's way through a task, stage by stage: ``python -m
bench.decoders`` from the top of a checkout.

For each stream, on clean input and with 0.02 % malformed records, in µs of CPU a
record: *floor* (the file read in pieces and parsed, msgspec or polars alone), *decode*
(binned accesses) and *kernel* (hashed, looked up, folded, too). ``--bytes`` compares
streams instead: the CPU time of decoding a byte of AAA (enriched), of today's AAA and
of HTCondor with a thousand fields a record, in turns, as ns a byte and as the ratio to
AAA. ``--against REV`` runs another revision of the checkout by turns on the same files,
each in processes of its own, and adds the median of the pairs' ratios. Others on the
machine make all of it dearer: ratios say more than microseconds.
"""

from __future__ import annotations

import argparse
import io
import json
import statistics
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from bench.inputs import DAY, Day, files_for, provide
from cmsspark.apps.demo.logs import LogLayout
from cmsspark.apps.demo.make import make
from cmsspark.sources.reader import Reader

TOP = Path(__file__).resolve().parents[1]
#: Stream → the form of its files.
FORMS = {"aaa": "enr", "eos": "json", "cmssw": "json", "crab": "avro"}
STAGES = ("floor", "decode", "kernel")
#: What each process runs: only what both revisions have, which is read by compiled code in both.
MEASURE = """
import json, sys, time
from datetime import date
from pathlib import Path
from cmsspark.sources.dumps import dump_at
from cmsspark.sources.reader import Reader
from cmsspark.filesystems.storage import LocalFiles
try:
    from cmsspark.run.catalogue_snapshots import open_snapshots
    from cmsspark.counting.catalogue import Catalogue
    from cmsspark.counting.pre_aggregate import StreamAggregator
except ModuleNotFoundError:  # a revision from before the kernel had a room
    from cmsspark.jobs.snapshots import open_snapshots
    from cmsspark.transforms.catalogue import Catalogue
    from cmsspark.transforms.fold import StreamFold as StreamAggregator

stream, form, day, dbs, cache, rounds, *paths = sys.argv[1:]
day = date.fromisoformat(day)
dump = dump_at(LocalFiles(), "dbs", dbs, day, None, ("FILES", "DATASETS"))
catalogue = Catalogue(open_snapshots(LocalFiles(), dump, None, Path(cache)).catalogue)
reader = Reader(stream, form, day)

def pieces(path, size=512 * 1024):
    buffer, have = bytearray(size), 0
    view = memoryview(buffer)
    with open(path, "rb", buffering=0) as file:
        while got := file.readinto(view[have:]):
            cut = buffer.rfind(b"\\n", 0, have + got) + 1
            yield view[:cut]
            rest = have + got - cut
            buffer[:rest] = buffer[cut : have + got]
            have = rest

def floor():
    for path in paths:
        if form == "avro":
            import polars
            frame = polars.read_avro(path, columns=list(reader.decoder.avro_fields))
            for name in frame.columns:
                frame[name].to_list()
            continue
        for piece in pieces(path):
            reader.decoder.decode_lines(piece)

def decode():
    records = 0
    for path in paths:
        with open(path, "rb") as file:
            records += sum(batch.read for batch in reader.file(file, path))
    return records

def kernel():
    fold = StreamAggregator(stream, catalogue)
    for path in paths:
        with open(path, "rb") as file:
            for batch in reader.file(file, path):
                fold.add(batch)
                fold.drain(reader.groups, None, str)
    fold.rows(reader.groups, None, str)

stages = {"floor": floor, "decode": decode, "kernel": kernel}
if "bad" in Path(paths[0]).name and form != "avro":
    del stages["floor"]  # it cannot pass the first bad line
records = decode()
times = {name: [] for name in stages}
for _ in range(int(rounds)):
    for name, stage in stages.items():
        began = time.process_time()
        stage()
        times[name].append((time.process_time() - began) / records * 1e6)
# The quickest round is the one that neighbours disturbed least.
print(json.dumps({name: min(found) for name, found in times.items()}))
"""


def checkout(revision: str, folder: Path) -> None:
    """The tree of a revision, beside this one, with its compiled code."""
    packed = subprocess.run(
        ["git", "archive", revision], cwd=TOP, check=True, capture_output=True
    ).stdout
    with tarfile.open(fileobj=io.BytesIO(packed)) as archive:
        archive.extractall(folder, filter="data")
    build = [sys.executable, "setup.py", "--quiet", "build_ext", "--inplace"]
    subprocess.run(
        build, cwd=folder, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )


def write_inputs(stream: str, parts: list[str], folder: Path) -> dict[str, Path]:
    """A stream's records in one file as they are made (``bad``), and without those that
    are malformed (``clean``).
    """
    bad, clean = folder / f"{stream}-bad", folder / f"{stream}-clean"
    if stream == "crab":
        _write_avro(parts, bad, clean)
    else:
        with bad.open("wb") as all_lines, clean.open("wb") as good_lines:
            for part in parts:
                content = Path(part).read_bytes()
                all_lines.write(content)
                good_lines.writelines(_without(content, set(_malformed(stream, part))))
    return {"clean": clean, "0.02 % bad": bad}


def _malformed(stream: str, path: str) -> Iterator[int]:
    with open(path, "rb") as file:
        for batch in Reader(stream, FORMS[stream], DAY).file(file, path):
            yield from (record.position for record in batch.malformed)


def _without(content: bytes, lines: set[int]) -> Iterator[bytes]:
    return (line for number, line in enumerate(io.BytesIO(content), 1) if number not in lines)


def _write_avro(parts: list[str], bad: Path, clean: Path) -> None:
    import fastavro

    rows_with_bad, well_formed = [], []
    for part in parts:
        malformed = set(_malformed("crab", part))
        with open(part, "rb") as file:
            reader = fastavro.reader(file)
            schema, rows = reader.writer_schema, list(reader)
        rows_with_bad += rows
        well_formed += [row for number, row in enumerate(rows) if number not in malformed]
    for path, content in ((bad, rows_with_bad), (clean, well_formed)):
        with path.open("wb") as file:
            fastavro.writer(file, schema, content, codec="snappy")


def measure(
    tree: Path, stream: str, files: list[Path], dbs: Path, rounds: int
) -> dict[str, float]:
    """µs of CPU a record of each stage, by the package in ``tree``, whose catalogue is
    kept beside the files.
    """
    cache = files[0].parent / f"cache-{tree.name}"
    command = [
        sys.executable,
        "-c",
        MEASURE,
        stream,
        FORMS[stream],
        DAY.isoformat(),
        str(dbs),
        str(cache),
        str(rounds),
    ]
    command += map(str, files)
    done = subprocess.run(
        command,
        cwd=tree,
        check=True,
        capture_output=True,
        text=True,
        env={"PYTHONPATH": str(tree)},
    )
    microseconds: dict[str, float] = json.loads(done.stdout)
    return microseconds


def row(
    name: str,
    kind: str,
    here: list[dict[str, float]],
    before: list[dict[str, float]],
    floor: float,
) -> str:
    """A line of the table: medians, what the kernel costs beside the floor, and beside
    the other revision.
    """
    medians = {
        stage: statistics.median(costs[stage] for costs in here)
        for stage in STAGES
        if stage in here[0]
    }
    cells = [f"{medians[stage]:.2f}" if stage in medians else "" for stage in STAGES]
    cells.append(f"{medians['kernel'] / floor:.2f}")
    if before:
        cells.append(f"{statistics.median(costs['kernel'] for costs in before):.2f}")
        pairs = zip(here, before, strict=True)
        cells.append(
            f"{statistics.median(now['kernel'] / then['kernel'] for now, then in pairs):.2f}"
        )
    return f"| {name:6} | {kind:10} | " + " | ".join(f"{text:>7}" for text in cells) + " |"


#: Streams whose cost a byte is compared: name → stream, format, layout of the demo.
BYTES = {
    "aaa": ("aaa", "enr", LogLayout(aaa="enr", gzip="none")),
    "aaa-ng": ("aaa", "aaa-ng", LogLayout(aaa="aaa-ng", gzip="none")),
    "condor": ("condor", "json", LogLayout(gzip="none", condor_fields=1000)),
}


def compare_bytes(records: int, rounds: int) -> None:
    """Print ns of CPU a byte and the ratio to AAA, of the quickest of some rounds in turns."""
    with tempfile.TemporaryDirectory(prefix="bytes-") as scratch:
        contents = {}
        for name, (stream, _, layout) in BYTES.items():
            made = make(
                Path(scratch, name),
                DAY,
                records=records,
                files=5000,
                datasets=200,
                people=200,
                streams=(stream,),
                layout=layout,
            )
            contents[name] = [
                file.read_bytes() for file in sorted(made.folders[stream].glob("part-*"))
            ]
        best = dict.fromkeys(BYTES, float("inf"))
        # A task reads many files with one reader; the first round is its start.
        readers = {name: Reader(stream, form, DAY) for name, (stream, form, _) in BYTES.items()}
        for turn in range(rounds + 1):
            for name, reader in readers.items():
                began = time.process_time()
                for content in contents[name]:
                    for _batch in reader.file(io.BytesIO(content), name):
                        pass
                if turn:
                    best[name] = min(best[name], time.process_time() - began)
    print(
        "| stream | bytes a record | ns a byte | x aaa |\n| ------ | -------------- | --------- | ----- |"
    )
    ns = {name: 1e9 * best[name] / sum(map(len, contents[name])) for name in BYTES}
    for name, parts in contents.items():
        lines = sum(content.count(b"\n") for content in parts)
        width = sum(map(len, parts)) / lines
        print(f"| {name:6} | {width:14,.0f} | {ns[name]:9.3f} | {ns[name] / ns['aaa']:5.2f} |")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--against", metavar="REV")
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument(
        "--rounds", type=int, default=3, help="in each process, of which the quickest counts"
    )
    parser.add_argument(
        "--records", type=int, default=400_000, help="of the day that all streams share"
    )
    parser.add_argument(
        "--parts", type=int, default=1, help="files of each stream, of up to 50,000 records"
    )
    parser.add_argument("--cache", type=Path, default=Path.home() / ".cache/cmsspark/bench")
    parser.add_argument("--only", choices=sorted(FORMS))
    parser.add_argument(
        "--bytes", action="store_true", help="compare the cost of a byte over streams"
    )
    chosen = parser.parse_args()
    if chosen.bytes:
        compare_bytes(min(chosen.records, 60_000), chosen.rounds)
        return
    inputs = provide(Day(chosen.records, files_for(chosen.records)), chosen.cache, 2)
    heads = [*STAGES, "x floor", *(("before", "ratio") if chosen.against else ())]
    print(
        "| stream | input      | " + " | ".join(f"{head:>7}" for head in heads) + " |", flush=True
    )
    print("| ------ | ---------- | " + " | ".join("-------" for _ in heads) + " |", flush=True)
    with tempfile.TemporaryDirectory(prefix="decoders-") as scratch:
        trees = [TOP]
        if chosen.against:
            trees.append(Path(scratch) / "before")
            checkout(chosen.against, trees[1])
        for stream in (chosen.only,) if chosen.only else FORMS:
            floor = 0.0
            for kind, file in write_inputs(
                stream, inputs.parts(stream)[: chosen.parts], Path(scratch)
            ).items():
                found: list[list[dict[str, float]]] = [[] for _ in trees]
                for turn in range(chosen.pairs):
                    for place in range(len(trees)) if turn % 2 else reversed(range(len(trees))):
                        done = measure(
                            trees[place], stream, [file], inputs.folders["dbs"], chosen.rounds
                        )
                        found[place].append(done)
                floor = floor or statistics.median(one["floor"] for one in found[0])
                print(
                    row(stream, kind, found[0], found[1] if chosen.against else [], floor),
                    flush=True,
                )


if __name__ == "__main__":
    main()
