"""PySpark's worker daemon, without tracebacks of workers whose tasks were cancelled.

When one task fails, Spark closes the sockets of the others. Their workers end with a broken connection, and PySpark's
daemon prints a traceback of it that hides the message of the failed task. Other tracebacks are printed.
Started by Spark as ``python -m cmsspark.engines.quiet_daemon`` (``spark.python.daemon.module``).
"""

from __future__ import annotations

import sys
import traceback
from types import SimpleNamespace


def print_trace() -> None:
    """Print the traceback of the current exception, unless the other side has closed the connection."""
    if not isinstance(sys.exc_info()[1], ConnectionError):
        traceback.print_exc()


def main() -> None:
    """Run PySpark's daemon."""
    from pyspark import daemon

    daemon.traceback = SimpleNamespace(print_exc=print_trace, format_exc=traceback.format_exc)
    daemon.manager()


if __name__ == "__main__":
    main()
