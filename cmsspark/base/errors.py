"""Error classes with exit codes. :mod:`cmsspark.base.reporting` prints them.

Each error says what is wrong, where, what is there instead and the next step, and has
an exit code. ``Exit`` defines the exit codes.
"""

from __future__ import annotations

import errno
import os
import re
import resource
from enum import IntEnum
from functools import partial
from typing import Any, Final, Self

from cmsspark.base.memory import is_shortage
from cmsspark.base.text.readable import readable


class Exit(IntEnum):
    """The exit codes of every command, each with its meaning and the next step.

    This is their only definition: ``cmsspark help exit-codes`` prints this list, and a
    test compares the table in ``docs/operations.md`` with it.

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
    USAGE = (
        2,
        "the command line is wrong",
        "correct the command line; `--help` lists the options",
    )
    QUARANTINED = (
        3,
        "some documents were quarantined; all others are published",
        "`cmsspark outbox show` prints the reasons; remove the cause, then publish again",
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
    NO_OUTPUT = (
        73,
        "a result cannot be written",
        "make room or get permission there, then run it again",
    )
    NOT_READY = (
        75,
        "not ready, locked by another run, or interrupted",
        "run the same command again later; this is the only code for which a retry alone helps",
    )
    NOT_ALLOWED = (
        77,
        "authentication, TLS or a permission failed",
        "renew or get the permission, then run it again",
    )
    SETTINGS = (
        78,
        "a settings file or value is wrong",
        "correct the file and line that the message names",
    )


class CmssparkError(Exception):
    """An error that says what is wrong, where, what is there instead, and what to do next.

    ``str()`` returns the message for users: one line for the problem, and one indented
    line for each of ``where``, ``found`` and ``next_step`` that is not None.

    Example:
        >>> error = InputMissing("no logs of this day", where="/data/2026/01/15", next_step="try another day")
        >>> print(error)
        no logs of this day
          where: /data/2026/01/15
          next: try another day
        >>> error.exit_code.name, int(error.exit_code)
        ('NO_INPUT', 66)
    """

    exit_code: Exit = Exit.BUG

    def __init__(
        self,
        problem: str,
        *,
        where: object = None,
        found: object = None,
        next_step: str | None = None,
    ) -> None:
        self.problem = problem
        self.where = where
        self.found = found
        self.next_step = next_step
        super().__init__(self.text())

    def text(self) -> str:
        """Return the message as users read it."""
        lines = [self.problem]
        for label, value in (
            ("where", self.where),
            ("found", self.found),
            ("next", self.next_step),
        ):
            if value is not None:
                lines.append(f"  {label}: {value}")
        # A file name may contain any bytes. Escape those that control a terminal or
        # that UTF-8 cannot encode.
        return readable("\n".join(lines))

    def with_parts(self, **parts: Any) -> Self:
        """Return this error with another ``where``, ``found`` or ``next_step``."""
        present: dict[str, Any] = {
            "where": self.where,
            "found": self.found,
            "next_step": self.next_step,
        }
        return type(self)(self.problem, **present | parts)

    def __reduce__(self) -> tuple[object, ...]:
        # Errors cross from Spark's Python workers to the driver by pickle.
        make = partial(type(self), where=self.where, found=self.found, next_step=self.next_step)
        return make, (self.problem,)


class UsageError(CmssparkError):
    """The command line is wrong (2)."""

    exit_code = Exit.USAGE


class DocumentsQuarantined(CmssparkError):
    """Some documents were rejected and quarantined; all others were published (3)."""

    exit_code = Exit.QUARANTINED


class DataError(CmssparkError):
    """Data beyond tolerance, damaged or of another schema (65)."""

    exit_code = Exit.DATA


class InputMissing(CmssparkError):
    """An input does not exist; the message names the days that do (66)."""

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


_SHORT_WRITE: Final = re.compile(r"\d+ requested and \d+ written")
#: How libraries in Rust, such as polars, end the text of such an error.
_RUST_ERROR: Final = re.compile(r"\(os error (\d{1,4})\)$")
#: Errors of disks and permissions, which are not bugs wherever they occur.
_OS_ERRORS: dict[int, type[CmssparkError]] = {
    errno.ENOSPC: OutputError,
    errno.EDQUOT: OutputError,
    errno.EROFS: OutputError,
    errno.EFBIG: OutputError,
    errno.EACCES: NotAllowed,
    errno.EPERM: NotAllowed,
    **dict.fromkeys(
        (errno.EIO, errno.ENXIO, errno.ENODEV, errno.EREMOTEIO, errno.EUCLEAN, errno.EBADMSG),
        DataError,
    ),
    **dict.fromkeys(
        (errno.ESTALE, errno.ETIMEDOUT, errno.EHOSTDOWN, errno.EHOSTUNREACH, errno.ENOTCONN),
        NotReady,
    ),
}
_NEXT_STEPS: Final[dict[type[CmssparkError], str]] = {
    DataError: "check the disk of that file, then run it again",
    NotReady: "run it again when the file server is back",
}


def parts_of_text(text: str) -> dict[str, str]:
    """Return the parts of a message as :meth:`CmssparkError.text` writes it, each as a line.

    Example:
        >>> parts_of_text("a file is damaged\\n  where: /a/b.gz\\n  next: fetch it again")
        {'problem': 'a file is damaged', 'where': '/a/b.gz', 'next': 'fetch it again'}
    """
    parts: dict[str, str] = {}
    label = "problem"
    for line in text.splitlines():
        begun, colon, content = line.partition(": ")
        if colon and begun in ("  where", "  found", "  next"):
            label, line = begun.strip(), content
        parts[label] = " ".join(filter(None, (parts.get(label, ""), line.strip())))
    return parts


def as_ours(error: BaseException) -> CmssparkError | None:
    """Return the error as a :class:`CmssparkError`; disk and permission errors are
    converted, others give None.

    Example:
        >>> print(as_ours(PermissionError(errno.EACCES, "Permission denied", "/data/results")))
        a file cannot be written or read
          where: /data/results
          found: Permission denied
          next: make room or get permission there, then run it again
    """
    if isinstance(error, CmssparkError):
        return error
    if isinstance(error, OSError) and error.errno in (errno.EMFILE, errno.ENFILE):
        return NotAllowed(
            "more files must be open at once than the system allows",
            where=error.filename,
            found=error.strerror,
            next_step="raise the limit (ulimit -n 1024), then run it again",
        )
    if is_shortage(error):
        # The error for too little memory: 77 for a limit of this process, 75 for a host
        # that is full.
        limit = resource.getrlimit(resource.RLIMIT_AS)[0]
        found = " ".join(str(error).split())[:200] or type(error).__name__
        if limit != resource.RLIM_INFINITY:
            return NotAllowed(
                "more memory is needed than this process may use",
                found=f"a limit of {limit // 1_000_000:,} MB; {found}",
                next_step="raise the limit (ulimit -v), then run it again",
            )
        return NotReady(
            "the host has too little memory, or lets this user start no more processes",
            found=found,
            next_step="run it again when there is more room, or with fewer cores",
        )
    if isinstance(error, ModuleNotFoundError) and (error.name or "").split(".")[0] in (
        "pyspark",
        "py4j",
    ):
        return missing_pyspark()
    if "[JAVA_GATEWAY_EXITED]" in str(error):
        return SettingsError(
            "Spark could not start Java",
            found="no Java that it can use: JAVA_HOME is wrong, or there is none on PATH",
            next_step="install Java 17 or set JAVA_HOME; cmsspark doctor shows what is there",
        )
    if (
        isinstance(error, FileNotFoundError)
        and error.filename is None
        and _is_working_folder_gone()
    ):
        return UsageError(
            "the working folder was deleted",
            next_step="cd to a folder that exists, then run it again",
        )
    number = os_error_number(error)
    if number in _OS_ERRORS and (isinstance(error, OSError) or _RUST_ERROR.search(str(error))):
        kind = _OS_ERRORS[number]
        return kind(
            "a file cannot be written or read",
            where=getattr(error, "filename", None),
            found=os.strerror(number),
            next_step=_NEXT_STEPS.get(
                kind, "make room or get permission there, then run it again"
            ),
        )
    return None


def missing_pyspark(who: str = "this command") -> SettingsError:
    """Return the error (78) where PySpark is needed and not installed; ``bin/demo`` leaves it out."""
    return SettingsError(
        f"{who} needs PySpark",
        found="not installed",
        next_step="pip install 'pyspark>=3.5,<5'",
    )


def os_error_number(error: BaseException) -> int:
    """Return the number of an error of the system, or 0; numpy reports a full disk
    without one, polars in its text.
    """
    if isinstance(error, OSError) and error.errno is None and _SHORT_WRITE.search(str(error)):
        return errno.ENOSPC
    if (rust := _RUST_ERROR.search(str(error))) is not None:
        return int(rust[1])
    return getattr(error, "errno", None) or 0


def _is_working_folder_gone() -> bool:
    try:
        os.getcwd()
    except FileNotFoundError:
        return True
    return False
