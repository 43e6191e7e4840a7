"""PySpark's worker daemon, without the trace of a worker whose task was cancelled.

When one task fails, Spark closes the sockets of the others. A worker then ends with a broken connection, and PySpark's
daemon prints a trace of that, which tells nobody anything and hides the message that does. All else is printed.
Started by Spark as ``python -m cmsspark.quiet_daemon`` (``spark.python.daemon.module``).
"""

from __future__ import annotations

import sys
import traceback
from types import SimpleNamespace


def print_trace() -> None:
    """The trace of the exception at hand, unless it is a connection that the other side has closed."""
    if not isinstance(sys.exc_info()[1], ConnectionError):
        traceback.print_exc()


def main() -> None:
    """Run PySpark's daemon."""
    from pyspark import daemon

    daemon.traceback = SimpleNamespace(print_exc=print_trace, format_exc=traceback.format_exc)
    daemon.manager()


if __name__ == "__main__":
    main()
