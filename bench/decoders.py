"""CPU time of the decoders on clean input, this checkout against another revision of it, in pairs.

``python bench/decoders.py --against REV [--pairs 7] [--records 60000]`` from the top of the checkout. Both sides decode
the same generated files, each run in a process of its own, by turns; the table gives the median of the pairs' ratios.
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
from datetime import date
from pathlib import Path

TOP = Path(__file__).resolve().parents[1]
DAY = date(2019, 6, 15)
#: Name → stream and form.
FEEDS = {
    "aaa": ("aaa", "enr"),
    "cmssw": ("cmssw", "json"),
    "eos-g1": ("eos", "json"),
    "eos-g2": ("eos", "json"),
    "eos-g3": ("eos", "json"),
    "crab": ("crab", "avro"),
}
#: What each process runs: only what both revisions have.
MEASURE = """
import sys, time
from datetime import date
from cmsspark.sources.reader import Reader
name, stream, form, rounds = sys.argv[1:5]
day = date(2019, 6, 15)
def once():
    reader = Reader(stream, form, day)
    with open(name, "rb") as file:
        return sum(batch.read for batch in reader.file(file, "part-0"))
times = []
for _ in range(int(rounds) + 1):
    began = time.process_time()
    once()
    times.append(time.process_time() - began)
# The quickest round is the one that neighbours disturbed least.
print(min(times[1:]))
"""


def write_inputs(folder: Path, records: int) -> None:
    """A file for each feed, from the examples of ``tests`` with other names in each record."""
    import fastavro

    for name in FEEDS:
        source = {"aaa": "aaa-enr", "cmssw": "cmssw-json", "crab": "crab-avro"}.get(name, name)
        example = json.loads((TOP / "tests/examples" / f"{source}.json").read_text(encoding="utf-8"))
        if name == "crab":
            rows = [example | {"FileName": f"/store/mc/r/{n % 5000}.root", "WrapCPU": f"{n}.5"} for n in range(records)]
            kinds = {key: "long" if isinstance(value, int) else "string" for key, value in example.items()}
            fields = [{"name": key, "type": ["null", kind]} for key, kind in kinds.items()]
            stored = io.BytesIO()
            fastavro.writer(stored, {"type": "record", "name": "r", "fields": fields}, rows, codec="snappy")
            (folder / name).write_bytes(stored.getvalue())
            continue
        text = json.dumps(example, separators=(",", ":")) + "\n"
        lines = (text.replace("72C78841", f"{n % 5000:08}") for n in range(records))
        (folder / name).write_text("".join(lines), encoding="utf-8")


def checkout(revision: str, folder: Path) -> None:
    """The tree of a revision, beside this one."""
    packed = subprocess.run(["git", "archive", revision], cwd=TOP, check=True, capture_output=True).stdout
    with tarfile.open(fileobj=io.BytesIO(packed)) as archive:
        archive.extractall(folder, filter="data")


def measure(tree: Path, file: Path, stream: str, form: str, rounds: int) -> float:
    """CPU seconds of one decoding of the file by the package in ``tree``."""
    command = [sys.executable, "-c", MEASURE, str(file), stream, form, str(rounds)]
    done = subprocess.run(command, cwd=tree, check=True, capture_output=True, text=True, env={"PYTHONPATH": str(tree)})
    return float(done.stdout)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--against", required=True, metavar="REV")
    parser.add_argument("--pairs", type=int, default=7)
    parser.add_argument("--records", type=int, default=40_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", choices=sorted(FEEDS))
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="decoders-") as scratch:
        before, inputs = Path(scratch) / "before", Path(scratch) / "inputs"
        inputs.mkdir()
        checkout(chosen.against, before)
        write_inputs(inputs, chosen.records)
        print(f"{'feed':8} {'before µs/record':>17} {'now':>8} {'ratio':>7}   (median of {chosen.pairs} pairs)")
        for name, (stream, form) in FEEDS.items():
            if chosen.only not in (None, name):
                continue
            pairs = []
            for turn in range(chosen.pairs):
                trees = (before, TOP) if turn % 2 else (TOP, before)
                times = {tree: measure(tree, inputs / name, stream, form, chosen.rounds) for tree in trees}
                pairs.append((times[before], times[TOP]))
            ratio = statistics.median(now / then for then, now in pairs)
            then, now = (statistics.median(times) / chosen.records * 1e6 for times in zip(*pairs, strict=True))
            print(f"{name:8} {then:17.3f} {now:8.3f} {ratio:7.3f}", flush=True)


if __name__ == "__main__":
    main()
