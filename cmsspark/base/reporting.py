"""Reports errors: a command runs, its error goes to stderr in a few lines, and its exit
code ends the process.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Final, NoReturn

import click

from cmsspark.base.errors import Exit, UsageError, as_ours
from cmsspark.base.text.spelling import suggestion

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
    line, with its traceback only when debugging. A KeyboardInterrupt may say what comes
    next.
    """
    if debugging():
        _write_stderr("".join(traceback.format_exception(error)))
    if isinstance(error, KeyboardInterrupt):
        step = error.args[0] if error.args else "run the same command again to finish"
        _write_stderr(f"{_program}: interrupted; {step}\n")
        return Exit.NOT_READY
    if (ours := as_ours(error)) is not None:
        usual = None if ours.next_step else _USUAL_STEPS.get(ours.exit_code)
        text = f"{ours.text()}\n" + (f"  next: {usual}\n" if usual else "")
        _write_stderr(f"{_program}: {as_typed(text)}")
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
        check_pasted(sys.argv[1:] if arguments is None else arguments)
        return command.main(args=arguments, prog_name=name, standalone_mode=False)
    except click.exceptions.Abort as abort:
        raise KeyboardInterrupt(*getattr(abort.__cause__, "args", ())) from None
    except click.exceptions.NoArgsIsHelpError as error:
        error.show()
        return int(Exit.USAGE)
    except click.ClickException as error:
        return int(report(usage_error(error, name)))
    except SystemExit as ended:
        # Click ends with 1 where the reader of a pipe has gone, and only there.
        return int(Exit.NO_OUTPUT) if ended.code == 1 else ended.code


def usage_error(error: click.ClickException, name: str) -> UsageError:
    """Return an error of click in the form of ours, with the nearest name of an option."""
    context = getattr(error, "ctx", None)
    path = name if context is None else context.command_path
    if (
        context is None
        and name == "cmsspark"
        and re.fullmatch(r"[a-z]+", (sys.argv[1:] or [""])[0])
    ):
        path = f"{name} {sys.argv[1]}"
    message = error.format_message().strip().removesuffix(".")
    message = message[:1].lower() + message[1:]
    hint = ""
    if isinstance(error, click.NoSuchOption):
        options = [] if context is None else context.command.get_params(context)
        names = [word for option in options for word in (*option.opts, *option.secondary_opts)]
        message = f"{path} has no option {error.option_name!r}"
        hint = suggestion(error.option_name, [word for word in names if word.startswith("--")])
    # A message of ours may have its next step in it: "… Type: cmsspark lab lint".
    problem, _, more = message.partition(". ")
    more = more.removeprefix("Type: ")
    return UsageError(problem, found=hint or None, next_step=more or f"{path} --help")


def check_pasted(argv: Sequence[str]) -> None:
    """Raise UsageError (2) for what a word processor or a habit of other languages left
    in a line: a long dash, a typographic quote, blanks around ``=``.
    """
    for position, word in enumerate(argv):
        if word == "--":
            return
        if word[:1] in ("–", "—", "−"):
            typed = f"--{word.lstrip('–—−-')}"
            raise UsageError(
                f"{word!r} begins with a long dash", next_step=f"type {typed}, with two short ones"
            )
        if word == "=" and position and argv[position - 1].startswith("-"):
            raise UsageError(
                f"'=' is no value of {argv[position - 1]}",
                next_step="leave out the blanks around '='",
            )
        if word[:1] in ("“", "”", "‘", "’", "„"):
            raise UsageError(
                f"{word!r} begins with a typographic quote", next_step="type ' or \" instead"
            )


#: What begins a command in a message; and how extras and PySpark are installed.
_TYPED: Final = re.compile(r"(?<![\w./-])(?=(?:cmsspark|run_spark) (?:[a-z_]|--|JOB))")
_EXTRA: Final = re.compile(r"pip install '?cmsspark\[([a-z,]+)\]'?")
_PYSPARK: Final = re.compile(r"pip install 'pyspark[^']*'")
_PIP: Final = re.compile(r"(?<!-m )(?=\bpip install )")


def as_typed(text: str, environ: Mapping[str, str] = os.environ) -> str:
    """Return a text whose commands can be typed as they stand: those of a checkout that
    ``bin/`` started, or of an environment that is not active, are not on PATH, and its
    pip is no other's.

    Example:
        >>> as_typed("cmsspark status", {"CMSSPARK_BIN": "/nowhere"})
        'cmsspark status'
    """
    folder = environ.get("CMSSPARK_BIN", "")
    is_checkout = bool(folder) and os.path.isfile(os.path.join(folder, "setup"))
    if is_checkout:
        commands = folder
    elif folder or "PATH" not in environ or sys.prefix == sys.base_prefix:
        return text
    else:
        commands = os.path.join(sys.prefix, "bin")
        checkout = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
        folder = os.path.join(checkout, "bin")
        is_checkout = os.path.isfile(os.path.join(folder, "setup")) and sys.prefix in (
            environ.get("CMSSPARK_VENV"),
            os.path.join(checkout, ".venv"),
        )
        if shutil.which("cmsspark", path=environ["PATH"]) == os.path.join(commands, "cmsspark"):
            commands = ""  # the environment is active
            if not is_checkout:
                return text
    if is_checkout:
        text = _EXTRA.sub(rf"{folder}/setup without-spark,\1", text)
        text = _PYSPARK.sub(f"{folder}/setup spark", text)
    else:
        text = _PIP.sub(f"{sys.executable} -m ", text)
    return _TYPED.sub(f"{commands}/", text) if commands else text


def run_and_exit(command: Callable[[], object]) -> NoReturn:
    """Run the ``main`` of a command and end the process with its exit code."""
    # Reopen closed standard streams on /dev/null.
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
    try:
        outcome = command()
    except (Exception, KeyboardInterrupt) as error:
        # Where the interrupt came while a text was executed, as dataclasses do, Python
        # would end `python -m` by SIGINT instead of the code. Executing another text
        # makes it forget that.
        exec("")  # noqa: S102
        sys.exit(int(report(error)))
    sys.exit(int(outcome) if isinstance(outcome, int) else 0)


# Signals: SIGTERM ends a command as Ctrl-C does, so that whatever was begun is closed.


@contextmanager
def interruptible() -> Iterator[None]:
    """Raise KeyboardInterrupt inside the block on SIGTERM; the handler before is
    restored at the end.

    In other threads than the main one nothing changes: Python handles signals in the
    main thread only.
    """

    def stop(number: int, frame: object) -> None:
        raise KeyboardInterrupt

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    handler = signal.signal(signal.SIGTERM, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, handler)
