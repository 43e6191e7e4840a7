"""Entry points of the ``cmsspark`` and ``run_spark`` scripts: they hold also while
modules are imported.

A signal, or too little memory, may end a command before any module of ours could handle
it. This module imports next to nothing, so that even then there is one line and a
documented exit code, and never a traceback.
"""

import importlib
import os
import signal
import sys

_INTERRUPTED = b": interrupted; run the same command again to finish\n"
_NO_MEMORY = b": more memory is needed than there is\n  next: raise the limit (ulimit -v), then run it again\n"


def cmsspark() -> None:
    """Run the ``cmsspark`` script."""
    _run("cmsspark.main", "cmsspark")


def run_spark() -> None:
    """Run the ``run_spark`` script."""
    _run("cmsspark.submit", "run_spark")


def _run(module: str, program: str) -> None:
    memory = _imported("cmsspark.base.memory", program)
    memory.check_room()
    _imported(module, program).main()


def _imported(module: str, program: str):  # type: ignore[no-untyped-def]  # typing is not imported here
    """Import the module; a signal during its import ends the process with 75, what
    cannot be loaded with its code.
    """
    before = signal.signal(signal.SIGTERM, _interrupt)
    try:
        loaded = importlib.import_module(module)
    except KeyboardInterrupt:
        _end(program, _INTERRUPTED, 75)
    except SystemError:
        # Compiled modules that get no memory while they are loaded forget to say so.
        _end(program, _NO_MEMORY, 77)
    except (MemoryError, OSError, ImportError, RuntimeError) as error:
        # Print one line for what could not be imported, as :mod:`cmsspark.base.errors`
        # does where that can be loaded.
        try:
            from cmsspark.base import reporting

            reporting.set_program(program)
            code = int(reporting.report(error))
        except BaseException:
            _end(program, _NO_MEMORY, 77)
        os._exit(code)
    finally:
        signal.signal(signal.SIGTERM, before)
    return loaded


def _interrupt(number: int, frame: object) -> None:
    raise KeyboardInterrupt


def _end(program: str, text: bytes, code: int) -> None:
    """End at once: at a normal end Python runs what the half-imported modules left to be done."""
    try:
        sys.stdout.flush()
        os.write(2, program.encode() + text)
    except (OSError, ValueError, AttributeError):
        pass
    os._exit(code)
