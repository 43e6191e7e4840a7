"""PySpark's worker daemon, which imports what tasks need once, and prints no tracebacks
of cancelled tasks.

Workers are forked from the daemon, each for a task at a time: none of them imports the same again.

When one task fails, Spark closes the sockets of the others. Their workers end with a
broken connection, and PySpark's daemon prints a traceback of it that hides the message
of the failed task. Other tracebacks are printed. Started by Spark as ``python -m
cmsspark.engines.quiet_daemon`` (``spark.python.daemon.module``).
"""

from __future__ import annotations

import gc
import importlib
import sys
import traceback
from contextlib import suppress
from types import SimpleNamespace
from typing import Final

#: With what they import. A thread that one of them started would be missing in the workers.
_IMPORTED: Final = (
    "pyarrow.compute",
    "cmsspark.engines.merge_task",
    "cmsspark.engines.scan",
    "cmsspark.sources.reader",
    "hdfs_native",
)


def import_for_tasks() -> None:
    """Import what tasks need. What is not there is missed by the tasks that need it."""
    for name in _IMPORTED:
        with suppress(ImportError):
            importlib.import_module(name)
    # PySpark searches for garbage after each task: 60 ms where it looks at all that was imported.
    gc.freeze()


def print_trace() -> None:
    """Print the traceback of the current exception, unless the other side has closed
    the connection.
    """
    if not isinstance(sys.exc_info()[1], ConnectionError):
        traceback.print_exc()


def main() -> None:
    """Run PySpark's daemon."""
    from pyspark import daemon

    import_for_tasks()
    daemon.traceback = SimpleNamespace(print_exc=print_trace, format_exc=traceback.format_exc)
    daemon.manager()


if __name__ == "__main__":
    main()
