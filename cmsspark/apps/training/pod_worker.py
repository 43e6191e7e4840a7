"""The program of a worker's pod: it starts the script, and serves what the script left
until the launcher has it.

It comes with ``worker.py`` and ``script_check.py`` in a ConfigMap, so it imports the
standard library and these two only. The pod becomes *ready* when its script has ended:
then ``/result`` tells the exit code and ``/output`` is an archive of the output, to
whoever has the run's token. ``/done`` lets the pod end, as does the time
``serve_seconds``.
"""

from __future__ import annotations

import hmac
import http.server
import json
import os
import sys
import tarfile
import threading
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

if __name__ == "__main__":
    import script_check  # type: ignore[import-not-found]  # beside this file, in a pod
    import worker  # type: ignore[import-not-found]
else:
    from cmsspark.apps.training import script_check, worker

#: Where the ConfigMap, the secrets and the output are in a pod.
FOLDER: Final = Path("/cmsspark")
#: The archive of --files in the ConfigMap.
FILES: Final = "files.tar.gz"
TOKEN_HEADER: Final = "X-Cmsspark-Token"  # noqa: S105  # the name of a header
#: What ends a script that imports what its image lacks.
MISSING_IMPORT: Final = 78


class Result:
    """How the script ended; None until then."""

    def __init__(self, output: Path, token: str) -> None:
        self.output, self.token = output, token
        self.code: int | None = None
        self.fetched = threading.Event()


def serve(result: Result, port: int) -> http.server.ThreadingHTTPServer:
    """Serve a result from a thread."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            if self.path == "/ready":
                self._answer(503 if result.code is None else 200, b"")
            elif not self._is_allowed():
                self._answer(403, b"")
            elif self.path == "/result":
                self._answer(200, json.dumps({"code": result.code}).encode())
            elif self.path == "/output" and result.code is not None:
                self._send_archive()
            else:
                self._answer(404, b"")

        def do_POST(self) -> None:
            if not self._is_allowed():
                self._answer(403, b"")
                return
            self._answer(200, b"")
            result.fetched.set()

        def _is_allowed(self) -> bool:
            return hmac.compare_digest(
                self.headers.get(TOKEN_HEADER, "").encode(), result.token.encode()
            )

        def _answer(self, code: int, body: bytes) -> None:
            self.send_response(code)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def _send_archive(self) -> None:
            self.send_response(200)
            self.send_header("Content-Type", "application/gzip")
            self.end_headers()
            with tarfile.open(fileobj=self.wfile, mode="w|gz") as archive:
                archive.add(result.output, arcname=".")

        def log_message(self, format: str, *arguments: Any) -> None:
            """Requests are no lines of the script."""

    server = http.server.ThreadingHTTPServer(("", port), Handler)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return server


def secrets_in(folder: Path) -> dict[str, dict[str, str]]:
    """Return the secrets that are mounted below a folder: name → key → value."""
    secrets: dict[str, dict[str, str]] = {}
    with suppress(FileNotFoundError):
        for secret in sorted(folder.iterdir()):
            # Kubernetes keeps its own links there, which begin with a dot.
            keys = [file for file in sorted(secret.iterdir()) if not file.name.startswith(".")]
            secrets[secret.name] = {
                file.name: file.read_bytes().decode("utf-8", "replace") for file in keys
            }
    return secrets


def main(folder: Path = FOLDER, environ: Mapping[str, str] = os.environ) -> int:
    """Run the worker of this pod; its exit code."""
    job = json.loads((folder / "job" / "job.json").read_text(encoding="utf-8"))
    job["rank"] = int(environ["JOB_COMPLETION_INDEX"])
    job["secrets"] = secrets_in(folder / "secrets")
    job["secrets_folder"] = str(folder / "secrets")
    job["output"] = f"{folder}/output/{job['run']}/worker-{job['rank']}"
    job["script"] = str(folder / "job" / job["script"])
    archive = folder / "job" / FILES
    if archive.is_file():
        job["files"] = str(folder / "files")
        with tarfile.open(archive, mode="r:gz") as packed:
            packed.extractall(job["files"], filter="data")
    os.makedirs(job["output"], exist_ok=True)
    token = (folder / "token" / "token").read_text(encoding="utf-8").strip()
    result = Result(Path(job["output"]), token)
    server = serve(result, int(job["port"]))
    was_stopped = False

    def emit(frame: worker.Frame) -> None:
        nonlocal was_stopped
        was_stopped = frame.get("stopped", was_stopped)
        if "line" in frame:
            sys.stdout.write(frame["line"] + "\n")
            sys.stdout.flush()

    folders = [str(folder / "job"), *([job["files"]] if job.get("files") else [])]
    missing = script_check.missing_imports(
        Path(job["script"]).read_text(encoding="utf-8"), *folders
    )
    if missing:
        names = ", ".join(f"{name} (line {line})" for name, line in missing)
        emit({"line": f"cmsspark: the image lacks modules that the script imports: {names}"})
        code = MISSING_IMPORT
    else:
        code = worker.run(job, emit)
    result.code = code
    if not was_stopped:
        result.fetched.wait(float(job["serve_seconds"]))
    server.shutdown()
    return code if code >= 0 else 128 - code


if __name__ == "__main__":
    sys.exit(main())
