"""Entry points of the ``cmsspark`` and ``run_spark`` scripts: they hold also while modules are imported.

A signal, or too little memory, may end a command before any module of ours could handle it. This module imports next to
nothing, so that even then there is one line and a documented exit code, and never a traceback.
"""

import importlib
import os
import signal
import sys

_INTERRUPTED = b"cmsspark: interrupted; run the same command again to finish\n"
_NO_MEMORY = b"cmsspark: more memory is needed than there is\n  next: raise the limit (ulimit -v), then run it again\n"


def cmsspark() -> None:
    """The ``cmsspark`` script."""
    _run("cmsspark.main")


def run_spark() -> None:
    """The ``run_spark`` script."""
    _run("cmsspark.submit")


def _run(module: str) -> None:
    memory = _imported("cmsspark.base.memory")
    memory.check_room()
    _imported(module).main()


def _imported(module: str):  # type: ignore[no-untyped-def]  # typing is not imported here
    """The module; a signal during its import ends the process with 75, what cannot be loaded with its code."""
    before = signal.signal(signal.SIGTERM, _interrupt)
    try:
        loaded = importlib.import_module(module)
    except KeyboardInterrupt:
        _end(_INTERRUPTED, 75)
    except SystemError:
        # Compiled modules that get no memory while they are loaded forget to say so.
        _end(_NO_MEMORY, 77)
    except (MemoryError, OSError, ImportError, RuntimeError) as error:
        _report(error)
    finally:
        signal.signal(signal.SIGTERM, before)
    return loaded


def _interrupt(number: int, frame: object) -> None:
    raise KeyboardInterrupt


def _report(error: BaseException) -> None:
    """One line for what could not be imported, by the rules of :mod:`cmsspark.base.errors` where that can be loaded."""
    try:
        from cmsspark.base import errors

        code = int(errors.report(error))
    except BaseException:
        _end(_NO_MEMORY, 77)
    os._exit(code)


def _end(text: bytes, code: int) -> None:
    """End at once: at a normal end Python runs what the half-imported modules left to be done."""
    try:
        sys.stdout.flush()
        os.write(2, text)
    except (OSError, ValueError, AttributeError):
        pass
    os._exit(code)
