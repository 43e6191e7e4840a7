"""How often findings are right: precision and recall of each on a corpus of labelled scripts.

``python -m bench.findings`` judges the event logs that are kept in
``tests/apps/monitor/corpus/logs``, without Spark. ``--record [NAME …]`` runs the
scripts again and keeps their logs; ``--run [NAME …]`` judges new runs and keeps
nothing. Each script names in its head what it is built to show (``# finds: CODE``, or
``nothing``).
"""

from __future__ import annotations

import argparse
import getpass
import json
import os
import re
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import cramjam
import msgspec

from cmsspark.apps.monitor.findings.find import find
from cmsspark.apps.monitor.logs.files import find_log
from cmsspark.apps.monitor.logs.reader import EventLogReader
from cmsspark.store.run_metrics import RunMetrics

TOP = Path(__file__).resolve().parents[1]
CORPUS = TOP / "tests" / "apps" / "monitor" / "corpus"
LOGS = CORPUS / "logs"
#: What a measurement adds to an event log; the rest is read from the log again.
MEASURED = (
    "samples",
    "log_lines",
    "options",
    "master",
    "exit_code",
    "state",
    "began_ms",
    "ended_ms",
    "sources",
)
LEAST = 0.9
_FINDS = re.compile(r"^# finds: (\w+)$", re.MULTILINE)


@dataclass
class Score:
    """How often a finding was named where it is, and where it is not."""

    right: int = 0
    false: list[str] = field(default_factory=list)
    missed: list[str] = field(default_factory=list)

    @property
    def precision(self) -> float:
        """The share of right ones among those that were named."""
        return self.right / named if (named := self.right + len(self.false)) else 1.0

    @property
    def recall(self) -> float:
        """The share of those that were named among all there are."""
        return self.right / there if (there := self.right + len(self.missed)) else 1.0


def labels() -> dict[str, str]:
    """Return script → the code that it is built to show, or ``nothing``."""
    found = {}
    for script in sorted(CORPUS.glob("*.py")):
        match = _FINDS.search(script.read_text(encoding="utf-8"))
        assert match is not None, f"{script} has no line '# finds: CODE'"
        found[script.stem] = match[1]
    return found


def needs_samples(name: str) -> bool:
    """Return whether a script is judged by samples of its processes, too."""
    return "# needs: samples" in (CORPUS / f"{name}.py").read_text(encoding="utf-8")


def codes(metrics: RunMetrics) -> set[str]:
    """Return the codes of the findings of a run."""
    return {finding.code for finding in find(metrics)}


def metrics_of(lines: Iterable[bytes], measured: Mapping[str, Any] | None = None) -> RunMetrics:
    """Return the run of an event log, with what was measured beside it."""
    fields = {"run": "", "job": "", "engine": "spark", "began_ms": 0, **(measured or {})}
    reader = EventLogReader(msgspec.convert(fields, RunMetrics))
    reader.read(lines)
    return reader.metrics()


def kept(name: str, folder: Path = LOGS) -> RunMetrics:
    """Return the run of a script as it is kept."""
    measured = folder / f"{name}.run.zst"
    fields = (
        json.loads(bytes(cramjam.zstd.decompress(measured.read_bytes())))
        if measured.exists()
        else None
    )
    return metrics_of(find_log(str(folder / f"{name}.zst")), fields)


def scores(found: Mapping[str, set[str]], expected: Mapping[str, str]) -> dict[str, Score]:
    """Return code → its score, for the codes that are expected or named anywhere."""
    result: dict[str, Score] = {}
    for name, named in found.items():
        label = {expected[name]} - {"nothing"}
        for code in label & named:
            result.setdefault(code, Score()).right += 1
        for code in named - label:
            result.setdefault(code, Score()).false.append(name)
        for code in label - named:
            result.setdefault(code, Score()).missed.append(name)
    return dict(sorted(result.items()))


def table(result: Mapping[str, Score]) -> Iterator[str]:
    """Yield the scores as text."""
    yield f"{'finding':<22}{'scripts':>8}{'precision':>11}{'recall':>8}"
    for code, score in result.items():
        wrong = "".join(f"  false in {name}" for name in score.false)
        wrong += "".join(f"  missed in {name}" for name in score.missed)
        count = score.right + len(score.missed)
        yield f"{code:<22}{count:>8}{score.precision:>11.2f}{score.recall:>8.2f}{wrong}"


def record(names: Iterable[str], folder: Path) -> Iterator[str]:
    """Run scripts and keep their logs in ``folder``; yields the name of each as soon as
    it is kept.
    """
    names = list(names)
    plain = [name for name in names if not needs_samples(name)]
    with tempfile.TemporaryDirectory() as scratch:
        if plain:
            scripts = [str(CORPUS / f"{name}.py") for name in plain]
            command = [sys.executable, "-m", "bench.findings_runs", scratch, *scripts]
            subprocess.run(
                command, cwd=TOP, check=True, stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL
            )
        for name in plain:
            _keep(folder / f"{name}.zst", (Path(scratch) / f"{name}.log").read_bytes())
            yield name
    for name in names:
        if needs_samples(name):
            with tempfile.TemporaryDirectory() as scratch:
                _measure(name, Path(scratch), folder)
            yield name


def _measure(name: str, state: Path, folder: Path) -> None:
    """Run a script by run_spark, which samples its processes, and keep its log and its samples."""
    options = [
        "--master",
        "local[2]",
        "--driver-memory",
        "1g",
        "--conf",
        "spark.eventLog.compress=false",
    ]
    options += [
        "--conf",
        "spark.eventLog.rolling.enabled=false",
        "--conf",
        "spark.driver.maxResultSize=0",
    ]
    options += ["--conf", "spark.driver.extraJavaOptions=-XX:+UseSerialGC -XX:TieredStopAtLevel=1"]
    program = "from cmsspark.submit import main; main()"
    command = [sys.executable, "-c", program, *options, str(CORPUS / f"{name}.py")]
    environ = {
        **os.environ,
        "CMSSPARK_STATE_DIR": str(state),
        "CMSSPARK_CACHE_DIR": str(state),
        "PYTHONPATH": str(TOP),
    }
    subprocess.run(command, cwd=state, env=environ, check=False, capture_output=True)
    (file,) = (state / "monitor" / "runs").glob("*/run.json")
    run = json.loads(file.read_bytes())
    (log,) = (
        path for path in (state / "monitor" / "events").iterdir() if not path.name.startswith(".")
    )
    _keep(folder / f"{name}.zst", log.read_bytes())
    measured = {key: run[key] for key in MEASURED if key in run}
    _pack(folder / f"{name}.run.zst", _nameless(json.dumps(measured)).encode())


def _keep(file: Path, log: bytes) -> None:
    """Keep an event log without what names this host, this user and its folders."""
    lines = []
    for line in log.decode().splitlines():
        event = json.loads(line)
        if event["Event"] == "SparkListenerEnvironmentUpdate":
            event = {"Event": event["Event"], "Spark Properties": event["Spark Properties"]}
        lines.append(_nameless(json.dumps(event, separators=(",", ":"))))
    _pack(file, "\n".join(lines).encode())


def _nameless(text: str) -> str:
    addresses = {
        socket.gethostname(),
        *re.findall(r'"(?:Host|spark\.driver\.host)":"([\d.]+)"', text),
    }
    for address in addresses - {"localhost"}:
        text = re.sub(rf"(?<![\w.]){re.escape(address)}(?![\w.])", "node1", text)
    text = text.replace(str(TOP), "/srv/cmsspark").replace(str(Path.home()) + "/", "/home/user/")
    return re.sub(rf'("User"|"user\.name"):"{re.escape(getpass.getuser())}"', r'\1:"user"', text)


def _pack(file: Path, content: bytes) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(bytes(cramjam.zstd.compress(content, level=19)))


def main() -> int:
    """Judge the corpus. Ends with 1 where a finding has less than 0.9 of precision or recall."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    action = parser.add_mutually_exclusive_group()
    action.add_argument(
        "--record", action="store_true", help="run the scripts, and keep their logs"
    )
    action.add_argument("--run", action="store_true", help="run the scripts, and judge these runs")
    parser.add_argument("names", nargs="*", help="scripts [default: all]")
    words = parser.parse_args()
    expected = labels()
    names = words.names or list(expected)
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch) if words.run else LOGS
        if words.record or words.run:
            for name in record(names, folder):
                print(name, flush=True)
        result = scores({name: codes(kept(name, folder)) for name in names}, expected)
    for line in table(result):
        print(line)
    weak = [code for code, score in result.items() if min(score.precision, score.recall) < LEAST]
    print(
        f"below {LEAST}: {', '.join(weak)}"
        if weak
        else f"all at least {LEAST}, from {len(names)} scripts"
    )
    return 1 if weak else 0


if __name__ == "__main__":
    sys.exit(main())
