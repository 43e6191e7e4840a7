"""Errors that a person can act on, and the one place that turns them into output.

Each error says what was wanted, where, what is there instead and the next step; it knows its exit code. ``Exit``
defines the exit codes.
"""

from __future__ import annotations

import errno
import os
import sys
import traceback
from collections.abc import Callable
from contextlib import suppress
from enum import IntEnum
from typing import NoReturn, Self

import click

from cmsspark.readable import readable


class Exit(IntEnum):
    """The exit codes of every command. Each one knows its meaning and what its reader does next.

    This is the one place that defines them: ``cmsspark help exit-codes`` prints this list, and the table in
    ``docs/operations.md`` is tested against it.

    Example:
        >>> Exit(66).name, Exit.NO_INPUT.meaning
        ('NO_INPUT', 'an input does not exist; the message names the days that do')
        >>> int(Exit.NOT_READY)
        75
    """

    meaning: str
    next_step: str

    def __new__(cls, code: int, meaning: str = "", next_step: str = "") -> Self:
        member = int.__new__(cls, code)
        member._value_ = code
        member.meaning = meaning
        member.next_step = next_step
        return member

    DONE = (0, "done", "nothing")
    USAGE = (2, "the command line is wrong", "correct the command line; `--help` lists the options")
    QUARANTINED = (
        3,
        "some documents were quarantined; all others are published",
        "`cmsspark outbox show` says why; remove the cause, then publish again",
    )
    DATA = (
        65,
        "the data are damaged, beyond a tolerance, or of another schema",
        "repair the data, or accept them with the option that the message names",
    )
    NO_INPUT = (
        66,
        "an input does not exist; the message names the days that do",
        "run it again when the input has arrived; `cmsspark daily` turns this code into 75",
    )
    BUG = (70, "a bug in cmsspark", "run it again with `--debug` and send us what it prints")
    NO_OUTPUT = (73, "a result cannot be written", "make room or get permission there, then run it again")
    NOT_READY = (
        75,
        "not ready, locked by another run, or interrupted",
        "run the same command again later; this is the only code for which a retry alone helps",
    )
    NOT_ALLOWED = (77, "authentication, TLS or a permission failed", "renew or get the permission, then run it again")
    SETTINGS = (78, "a settings file or value is wrong", "correct the file and line that the message names")


class CmssparkError(Exception):
    """What was wanted, where, what is there instead, and what to do next.

    ``str()`` of it is the text that users read: one line for the problem, one indented line for each
    of ``where``, ``found`` and ``next_step`` that is given.

    Example:
        >>> error = InputMissing("a day of logs is wanted", where="/data/2026/01/15", next_step="try another day")
        >>> print(error)
        a day of logs is wanted
          where: /data/2026/01/15
          next: try another day
        >>> error.exit_code.name, int(error.exit_code)
        ('NO_INPUT', 66)
    """

    exit_code: Exit = Exit.BUG

    def __init__(
        self,
        wanted: str,
        *,
        where: object = None,
        found: object = None,
        next_step: str | None = None,
    ) -> None:
        self.wanted = wanted
        self.where = where
        self.found = found
        self.next_step = next_step
        super().__init__(self.text())

    def text(self) -> str:
        """The message as users read it."""
        lines = [self.wanted]
        for label, value in (("where", self.where), ("found", self.found), ("next", self.next_step)):
            if value is not None:
                lines.append(f"  {label}: {value}")
        # Names of files are any bytes: they must not write elsewhere on a terminal, nor break what stores this.
        return readable("\n".join(lines))

    def __reduce__(self) -> tuple[object, ...]:
        # Errors cross from Spark's Python workers to the driver by pickle.
        return (_rebuild, (type(self), self.wanted, self.where, self.found, self.next_step))


def _rebuild(
    kind: type[CmssparkError], wanted: str, where: object, found: object, next_step: str | None
) -> CmssparkError:
    return kind(wanted, where=where, found=found, next_step=next_step)


class UsageError(CmssparkError):
    """The command line is wrong (2)."""

    exit_code = Exit.USAGE


class DocumentsQuarantined(CmssparkError):
    """Some documents were refused and kept aside; all others were published (3)."""

    exit_code = Exit.QUARANTINED


class DataError(CmssparkError):
    """Data beyond tolerance, damaged or of another schema (65)."""

    exit_code = Exit.DATA


class InputMissing(CmssparkError):
    """An input is not there; the message says which days are (66)."""

    exit_code = Exit.NO_INPUT


class OutputError(CmssparkError):
    """A result cannot be written (73)."""

    exit_code = Exit.NO_OUTPUT


class NotReady(CmssparkError):
    """Not ready, locked or interrupted: the same command may work later (75)."""

    exit_code = Exit.NOT_READY


class NotAllowed(CmssparkError):
    """Authentication, TLS or permission (77)."""

    exit_code = Exit.NOT_ALLOWED


class SettingsError(CmssparkError):
    """A settings file or value is wrong (78)."""

    exit_code = Exit.SETTINGS


def debugging() -> bool:
    """True when tracebacks are wanted (``--debug`` or ``CMSSPARK_DEBUG=1``)."""
    return "--debug" in sys.argv or os.environ.get("CMSSPARK_DEBUG", "") not in ("", "0")


#: What a disk or a permission refuses, wherever it happens, is no bug of ours.
_OF_THE_DISK: dict[int, type[CmssparkError]] = {
    errno.ENOSPC: OutputError,
    errno.EDQUOT: OutputError,
    errno.EROFS: OutputError,
    errno.EACCES: NotAllowed,
    errno.EPERM: NotAllowed,
}


def report(error: BaseException) -> Exit:
    """Print ``error`` for a person on stderr and return the exit code that belongs to it.

    An error that is none of ours is a bug (70): it is told in one line, with its traceback only when debugging.
    """
    if debugging():
        _say("".join(traceback.format_exception(error)))
    if isinstance(error, KeyboardInterrupt):
        _say("cmsspark: interrupted; run the same command again to finish\n")
        return Exit.NOT_READY
    if (ours := as_ours(error)) is not None:
        _say(f"cmsspark: {ours.text()}\n")
        return ours.exit_code
    reason = " ".join(str(error).split())[:300]
    _say(
        f"cmsspark: a bug of ours: {type(error).__name__}: {reason}\n"
        "  next: run it again with --debug and send us what it prints\n"
    )
    return Exit.BUG


def as_ours(error: BaseException) -> CmssparkError | None:
    """The error as one of ours: itself, or what a disk or a permission refused; None for all others."""
    if isinstance(error, CmssparkError):
        return error
    if isinstance(error, OSError) and error.errno in (errno.EMFILE, errno.ENFILE):
        return NotAllowed(
            "more files must be open at once than the system allows",
            where=error.filename,
            found=error.strerror,
            next_step="raise the limit (ulimit -n 1024), then run it again",
        )
    if isinstance(error, FileNotFoundError) and error.filename is None and _is_working_folder_gone():
        return UsageError("the working folder was deleted", next_step="cd to a folder that exists, then run it again")
    if isinstance(error, OSError) and error.errno in _OF_THE_DISK:
        return _OF_THE_DISK[error.errno](
            "a file cannot be written or read",
            where=error.filename,
            found=error.strerror,
            next_step="make room or get permission there, then run it again",
        )
    return None


def _is_working_folder_gone() -> bool:
    try:
        os.getcwd()
    except FileNotFoundError:
        return True
    return False


def _say(text: str) -> None:
    """Write to stderr. Where that is a file on a full disk the exit code still tells."""
    try:
        sys.stderr.write(text)
        sys.stderr.flush()
    except OSError:
        with suppress(OSError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), 2)


def run_click(command: click.Command, name: str, arguments: list[str] | None = None) -> object:
    """Call a click command so that its own errors end in our exit codes, and return what it returns."""
    try:
        return command.main(args=arguments, prog_name=name, standalone_mode=False)
    except click.exceptions.Abort:
        raise KeyboardInterrupt from None
    except click.ClickException as error:
        error.show()
        return int(Exit.USAGE)


def _open_standard_streams() -> None:
    """Open what the caller closed of stdin, stdout and stderr on nothing.

    The next file that is opened would have its number, and children would write their messages into it.
    """
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        if getattr(sys, name) is not None:
            continue
        with suppress(OSError):
            null = os.open(os.devnull, os.O_RDWR)
            if null != number:
                os.dup2(null, number)
                os.close(null)
            os.set_inheritable(number, True)
            setattr(sys, name, open(number, "r" if number == 0 else "w", encoding="utf-8", closefd=False))  # noqa: SIM115


def run_and_exit(command: Callable[[], object]) -> NoReturn:
    """Run a command line's ``main`` and leave the process with the exit code that its end means."""
    _open_standard_streams()
    try:
        outcome = command()
    except (Exception, KeyboardInterrupt) as error:
        sys.exit(int(report(error)))
    sys.exit(int(outcome) if isinstance(outcome, int) else 0)
