"""A real OpenSearch for tests: one node from Maven's jars, own port, own folder,
stopped at the end.

It knows neither TLS nor users. ``python -m tests.opensearch`` (``bin/opensearch``) runs
one until it is interrupted.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from tests.jars import JarSet

HOME: Final = Path(__file__).resolve().parent / "opensearch_node"
JARS: Final = JarSet("opensearch", HOME, {"opensearch": (), "compiler": ()})
#: Seconds that a node on a busy machine may need.
PATIENCE: Final = 300.0
_JAVA: Final = ("java", "-Xms128m", "-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")


def missing() -> str | None:
    """Why no node can be started here, or None."""
    if shutil.which("java") is None:
        return "java is needed for OpenSearch"
    if not (JARS.cache() / "complete").is_file() and shutil.which("mvn") is None:
        return "Maven is needed to fetch OpenSearch (apt-get install maven)"
    return None


def classes() -> Path:
    """The folder of the compiled launcher, below the jars; compiled where it is not there yet."""
    source = HOME / "Launcher.java"
    jars = JARS.jars()
    target = jars / f"launcher-{hashlib.sha256(source.read_bytes()).hexdigest()[:12]}"
    if not target.is_dir():
        with tempfile.TemporaryDirectory(dir=jars) as aside:
            # Not javac: a machine that only runs Java has none.
            compiler = [
                "java",
                "-cp",
                f"{jars}/compiler/*",
                "org.eclipse.jdt.internal.compiler.batch.Main",
            ]
            words = [
                "-17",
                "-nowarn",
                "-cp",
                ":".join(map(str, sorted(jars.glob("opensearch/*.jar")))),
                "-d",
                aside,
            ]
            subprocess.run([*compiler, *words, str(source)], check=True)
            with suppress(OSError):  # another one compiled it meanwhile
                shutil.copytree(aside, f"{aside}.done")
                Path(f"{aside}.done").rename(target)
    return target


@dataclass
class OpenSearch:
    """A node in ``folder``; what it stored survives :meth:`stop` and :meth:`start`."""

    folder: Path
    process: subprocess.Popen[bytes] | None = None
    url: str = ""

    def start(self) -> None:
        """Start and wait until it answers; ``url`` is its address."""
        launcher, jars = classes(), JARS.jars()
        address = self.folder / "address"
        for name in ("config", "data", "logs"):
            (self.folder / name).mkdir(parents=True, exist_ok=True)
        address.unlink(missing_ok=True)
        command = [
            *_JAVA,
            f"-Djava.io.tmpdir={self.folder}",
            f"-Dlog4j.configurationFile={HOME}/log4j2.properties",
            "-Dlog4j2.formatMsgNoLookups=true",
            "-cp",
            f"{launcher}:{jars}/opensearch/*",
            "Launcher",
            str(self.folder),
        ]
        with open(self.folder / "node.log", "ab") as log:
            self.process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd=self.folder
            )
        deadline = time.monotonic() + PATIENCE
        while time.monotonic() < deadline and self.process.poll() is None:
            if address.is_file():
                self.url = f"http://{address.read_text()}"
                self.request("GET", "/_cluster/health?wait_for_status=yellow&timeout=280s")
                return
            time.sleep(0.1)
        log_text = (self.folder / "node.log").read_text(errors="replace")[-3000:]
        self.stop()
        raise RuntimeError(f"OpenSearch did not start: {log_text}")

    def stop(self) -> None:
        """End the process and wait for it."""
        if self.process is not None:
            self.process.send_signal(signal.SIGCONT)
            self.process.kill()
            self.process.wait(PATIENCE)
            self.process = None

    def request(self, method: str, path: str, body: Any = None, *, ok: bool = True) -> Any:
        """The JSON answer of a request; ``body`` is sent as JSON, or as it is where it is bytes.

        With ``ok`` an answer that is an error raises RuntimeError with its text, else
        that answer is returned.
        """
        content = body if isinstance(body, bytes) or body is None else json.dumps(body).encode()
        kind = "application/x-ndjson" if isinstance(body, bytes) else "application/json"
        request = urllib.request.Request(
            self.url + path, content, {"Content-Type": kind}, method=method
        )
        try:
            with urllib.request.urlopen(request, timeout=PATIENCE) as answer:
                text = answer.read()
        except urllib.error.HTTPError as error:
            with error:
                text = error.read()
            if ok:
                raise RuntimeError(f"{method} {path}: {error.code} {text[:2000]!r}") from None
        return json.loads(text) if text else {}

    def create(
        self, index: str, properties: Mapping[str, Any] | None = None, **settings: Any
    ) -> None:
        """Make an index of one shard without copies; ``properties``: its mapping,
        beside what OpenSearch guesses.
        """
        given = {"number_of_shards": 1, "number_of_replicas": 0, **settings}
        mapping = {"mappings": {"properties": dict(properties)}} if properties else {}
        self.request("PUT", f"/{index}", {"settings": given, **mapping})

    def put(self, index: str, documents: Iterable[tuple[str | None, Mapping[str, Any]]]) -> int:
        """Store documents, each under its ``_id`` or, where that is None, a random one;
        returns how many.

        They can be searched when it returns. Raises RuntimeError where one is refused.
        """
        lines, count = [], 0
        for identity, document in documents:
            action = {"index": {"_index": index, **({"_id": identity} if identity else {})}}
            lines += [json.dumps(action), json.dumps(document)]
            count += 1
            if len(lines) >= 4_000:
                self._bulk(lines)
                lines = []
        if lines:
            self._bulk(lines)
        self.request("POST", f"/{index}/_refresh")
        return count

    def _bulk(self, lines: list[str]) -> None:
        answer = self.request("POST", "/_bulk", ("\n".join(lines) + "\n").encode())
        if answer["errors"]:
            first = next(
                item["index"] for item in answer["items"] if item["index"]["status"] >= 300
            )
            raise RuntimeError(f"a document is refused: {first}")

    def clear(self) -> None:
        """Delete all indices."""
        for entry in self.request("GET", "/_cat/indices?format=json&expand_wildcards=all"):
            self.request("DELETE", f"/{entry['index']}")


@contextmanager
def running(folder: Path) -> Iterator[OpenSearch]:
    """A started node, stopped at the end."""
    node = OpenSearch(folder / "opensearch")
    node.start()
    try:
        yield node
    finally:
        node.stop()


def running_or_skip(folder: Path) -> Iterator[OpenSearch]:
    """A fixture's node; where none can be started, its tests are skipped."""
    import pytest

    reason = missing()
    if reason:
        pytest.skip(reason)
    with running(folder) as node:
        yield node


def main() -> None:
    """Run a node until it is interrupted, or write the pins anew with ``--pin FOLDER``."""
    if sys.argv[1:2] == ["--pin"]:
        JARS.pin(Path(sys.argv[2]), "python -m tests.opensearch --pin")
        return
    with tempfile.TemporaryDirectory(prefix="opensearch-") as name, running(Path(name)) as node:
        sys.stdout.write(
            f"{node.url}\nOpenSearch runs until this ends (Ctrl-C); its log: {node.folder}/node.log\n"
        )
        sys.stdout.flush()
        assert node.process is not None
        with suppress(KeyboardInterrupt):
            node.process.wait()


if __name__ == "__main__":
    main()
