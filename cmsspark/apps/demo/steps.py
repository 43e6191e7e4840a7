"""Numbered steps that print their output as it arrives and the time that they take."""

from __future__ import annotations

import os
import queue
import shlex
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

import click

from cmsspark.base.text import progress_line

#: Seconds between updates of the clock on a terminal.
TICK = 1.0


@dataclass
class Steps:
    """The steps of one run of the demo, and their time."""

    total: int
    started: float = field(default_factory=time.monotonic)
    number: int = 0
    _summary: str = ""

    @property
    def elapsed(self) -> float:
        """Seconds since the start."""
        return time.monotonic() - self.started

    @contextmanager
    def step(self, title: str) -> Iterator[None]:
        """Print a step's title, and when it has ended its time and what
        :meth:`summarize` was told.
        """
        self.number += 1
        self._summary = ""
        began = time.monotonic()
        click.secho(f"[{self.number}/{self.total}] {title}", bold=True)
        yield
        _clear()
        click.secho(
            f"      {time.monotonic() - began:.1f} s{self._summary and f': {self._summary}'}",
            dim=True,
        )

    def echo(self, text: str) -> None:
        """Print a line of the running step."""
        click.echo(f"      {text}")

    def progress(self, text: str) -> None:
        """Show on a terminal what the running step does, until it does something else."""
        if sys.stdout.isatty() and not progress_line.is_quiet():
            _clear()
            click.echo(f"      {text}", nl=False)

    def summarize(self, text: str) -> None:
        """Set the result of the running step, printed behind its time."""
        self._summary = text

    def run(
        self, command: Sequence[str], *, environment: Mapping[str, str], is_shown: bool = False
    ) -> int:
        """Run a command and return its exit code. On a terminal a clock runs while it is silent.

        What it prints is shown where it fails, or with ``is_shown``.
        """
        printed: list[str] = []
        with subprocess.Popen(
            list(command),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            encoding="utf-8",
            errors="replace",
            env={**os.environ, **self._progress(), **environment},
        ) as process:
            assert process.stdout is not None
            began = time.monotonic()
            for line in _lines(process.stdout):
                if line is not None and line.startswith(progress_line.MARK):
                    _clear()
                    width = shutil.get_terminal_size().columns - 1
                    click.echo(f"      {line[1:].rstrip()}"[:width], nl=False)
                elif line is not None:
                    printed.append(line.rstrip())
                elif sys.stdout.isatty():
                    click.echo(f"\r      … {time.monotonic() - began:.0f} s", nl=False)
            _clear()
        if process.returncode or is_shown:
            for line in printed:
                self.echo(line)
        return process.returncode

    @staticmethod
    def _progress() -> dict[str, str]:
        """Return the environment that has a child report its progress to the terminal
        of this process.
        """
        return (
            {progress_line.MODE: "stream"}
            if sys.stdout.isatty() and not progress_line.is_quiet()
            else {}
        )


def _lines(stream: IO[str]) -> Iterator[str | None]:
    """Lines as they arrive; None when none arrived for ``TICK`` seconds."""
    lines: queue.SimpleQueue[str | None] = queue.SimpleQueue()

    def read() -> None:
        for line in stream:
            lines.put(line)
        lines.put(None)

    threading.Thread(target=read, daemon=True).start()
    while True:
        try:
            line = lines.get(timeout=TICK)
        except queue.Empty:
            yield None
            continue
        if line is None:
            return
        yield line


def _clear() -> None:
    if sys.stdout.isatty():
        click.echo("\r\033[K", nl=False)


def installed(name: str, module: str) -> list[str]:
    """Return the command line of one of our commands: the script beside this Python,
    else its module.
    """
    script = Path(sys.executable).with_name(name)
    if script.is_file():
        return [str(script)]
    return [sys.executable, "-c", f"from {module} import main; main()"]


def spelled(name: str, arguments: Sequence[str]) -> str:
    """Return the command as typed in a shell."""
    return f"{name} {shlex.join(arguments)}"
