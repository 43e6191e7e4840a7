"""Planted secrets, and a look at everything that a command leaves or shows while it runs."""

from __future__ import annotations

import contextlib
import os
import subprocess
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path


@dataclass
class Ran:
    """How a command ended, what it printed, and every command line of its processes."""

    code: int
    printed: bytes
    argv: set[bytes] = field(default_factory=set)


def run_watched(command: Sequence[str], folder: Path, environment: Mapping[str, str]) -> Ran:
    """Run a command and read the command lines of it and of all that it starts, as
    ``ps`` shows them to everybody.
    """
    process = subprocess.Popen(
        command,
        cwd=folder,
        env={**os.environ, **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    ran = Ran(0, b"")
    done = threading.Event()

    def watch() -> None:
        while not done.wait(0.05):
            ran.argv |= _command_lines(process.pid)

    watching = threading.Thread(target=watch)
    watching.start()
    try:
        ran.printed, _ = process.communicate(timeout=300)
    finally:
        done.set()
        watching.join()
    ran.code = process.returncode
    return ran


def _command_lines(top: int) -> set[bytes]:
    """The command lines of a process and its descendants."""
    parents: dict[int, int] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError, ValueError, IndexError):
                parents[int(entry.name)] = int(
                    (entry / "stat").read_text().rpartition(")")[2].split()[1]
                )
    found = {top}
    while more := {pid for pid, parent in parents.items() if parent in found} - found:
        found |= more
    lines = set()
    for pid in found:
        with contextlib.suppress(OSError):
            lines.add(Path(f"/proc/{pid}/cmdline").read_bytes())
    return lines


def leaks(
    secrets: Mapping[str, bytes], ran: Ran, *folders: Path, except_in: Sequence[str] = ()
) -> list[str]:
    """Where planted secrets show: in what was printed, in command lines, in files and
    their names below ``folders``.

    ``except_in``: names of folders and files that are private, and meant to hold them.
    """
    shown = []
    for name, secret in secrets.items():
        if secret in ran.printed:
            line = (
                next(line for line in ran.printed.splitlines() if secret in line)
                if b"\n" not in secret
                else secret
            )
            shown.append(f"{name} is printed: {line[:300]!r}")
        shown += [
            f"{name} is in a command line: {line[:300]!r}" for line in ran.argv if secret in line
        ]
    for folder in folders:
        for file in sorted(folder.rglob("*")):
            if not set(file.relative_to(folder).parts) & set(except_in):
                content = file.read_bytes() if file.is_file() else b""
                shown += [
                    f"{name} is in {file}"
                    for name, secret in secrets.items()
                    if secret in content or secret in str(file).encode()
                ]
    return shown
