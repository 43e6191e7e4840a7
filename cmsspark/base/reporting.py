"""Reports errors: a command runs, its error goes to stderr in a few lines, and its exit
code ends the process.
"""

from __future__ import annotations

import os
import re
import sys
import traceback
from collections.abc import Callable
from contextlib import suppress
from typing import Final, NoReturn

import click

from cmsspark.base.errors import Exit, as_ours

#: The next step that is printed for an error without its own. The message of a usage
#: error has what to type instead.
_USUAL_STEPS: Final = {
    Exit.DATA: "repair or replace what the message names, then run it again",
    Exit.NO_INPUT: "check the name; if the input has not arrived yet, run it again when it has",
    Exit.NO_OUTPUT: Exit.NO_OUTPUT.next_step,
    Exit.NOT_READY: "run the same command again later",
    Exit.NOT_ALLOWED: Exit.NOT_ALLOWED.next_step,
    Exit.SETTINGS: Exit.SETTINGS.next_step,
}

_PY4J: Final = re.compile(r"An error occurred while calling \S+\s*:?\s*")

#: The program whose errors are printed: ``cmsspark``, or ``run_spark`` in its own
#: process and in those of its jobs.
_program = "cmsspark"


def set_program(name: str) -> None:
    """Begin the errors of this process with ``name``."""
    global _program
    _program = name


def report(error: BaseException) -> Exit:
    """Print ``error`` to stderr, behind the program's name, and return its exit code.

    Any error other than a :class:`CmssparkError` is a bug (70). It is printed in one
    line, with its traceback only when debugging.
    """
    if debugging():
        _write_stderr("".join(traceback.format_exception(error)))
    if isinstance(error, KeyboardInterrupt):
        _write_stderr(f"{_program}: interrupted; run the same command again to finish\n")
        return Exit.NOT_READY
    if (ours := as_ours(error)) is not None:
        usual = None if ours.next_step else _USUAL_STEPS.get(ours.exit_code)
        _write_stderr(f"{_program}: {ours.text()}\n" + (f"  next: {usual}\n" if usual else ""))
        return ours.exit_code
    # The first words of Py4J say nothing of what happened.
    text = _PY4J.sub("", str(error), count=1)
    reason = " ".join(text.split("\n\tat ", 1)[0].split())[:300]
    _write_stderr(
        f"{_program}: a bug in cmsspark: {type(error).__name__}: {reason}\n"
        "  next: run it again with --debug and send us what it prints\n"
    )
    return Exit.BUG


def debugging() -> bool:
    """Return whether tracebacks are printed (``--debug`` or ``CMSSPARK_DEBUG=1``)."""
    return "--debug" in sys.argv or os.environ.get("CMSSPARK_DEBUG", "") not in ("", "0")


def _write_stderr(text: str) -> None:
    """Write to stderr. Failures are ignored, for example on a full disk: the exit code
    still reports the error.
    """
    try:
        sys.stderr.write(text)
        sys.stderr.flush()
    except OSError:
        with suppress(OSError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), 2)


def run_click(command: click.Command, name: str, arguments: list[str] | None = None) -> object:
    """Call a click command with its errors mapped to :class:`Exit` codes, and return its result."""
    try:
        return command.main(args=arguments, prog_name=name, standalone_mode=False)
    except click.exceptions.Abort:
        raise KeyboardInterrupt from None
    except click.ClickException as error:
        error.show()
        return int(Exit.USAGE)
    except SystemExit as ended:
        # Click ends with 1 where the reader of a pipe has gone, and only there.
        return int(Exit.NO_OUTPUT) if ended.code == 1 else ended.code


def _open_standard_streams() -> None:
    """Reopen closed standard streams on /dev/null.

    The next file that is opened would have its number, and children would write their
    messages into it.
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
            setattr(
                sys,
                name,
                open(number, "r" if number == 0 else "w", encoding="utf-8", closefd=False),  # noqa: SIM115
            )


def run_and_exit(command: Callable[[], object]) -> NoReturn:
    """Run the ``main`` of a command and end the process with its exit code."""
    _open_standard_streams()
    try:
        outcome = command()
    except (Exception, KeyboardInterrupt) as error:
        # Where the interrupt came while a text was executed, as dataclasses do, Python
        # would end `python -m` by SIGINT instead of the code. Executing another text
        # makes it forget that.
        exec("")  # noqa: S102
        sys.exit(int(report(error)))
    sys.exit(int(outcome) if isinstance(outcome, int) else 0)
