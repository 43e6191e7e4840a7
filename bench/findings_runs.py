"""Runs scripts of the corpus of findings one after another in this process, an event log for each.

``python -m bench.findings_runs FOLDER SCRIPT…`` is what :mod:`bench.findings` starts:
one JVM for many scripts, a context of its own for each.
"""

from __future__ import annotations

import os
import runpy
import sys
import traceback
from pathlib import Path

OPTIONS = (
    "--master local[2] --driver-memory 1g --conf spark.ui.enabled=false --conf spark.ui.showConsoleProgress=false "
    "--conf spark.sql.shuffle.partitions=4 --conf spark.eventLog.enabled=true "
    "--conf spark.eventLog.rolling.enabled=false --conf spark.eventLog.compress=false "
    "--conf spark.eventLog.dir={folder} --driver-java-options '-XX:+UseSerialGC -XX:TieredStopAtLevel=1' pyspark-shell"
)


def run(folder: Path, script: Path) -> None:
    """Run a script; its event log becomes ``FOLDER/<name>.log``, whether the script fails or not."""
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

    before = set(folder.iterdir())
    try:
        runpy.run_path(str(script), run_name="__main__")
    except Exception:
        traceback.print_exc(limit=1)
    # A script that failed leaves its session, and the next one would get its options.
    if SparkSession._instantiatedSession is not None:
        SparkSession._instantiatedSession.stop()
    if SparkContext._active_spark_context is not None:
        SparkContext._active_spark_context.stop()
    (log,) = set(folder.iterdir()) - before
    log.rename(folder / f"{script.stem}.log")


def main() -> None:
    """Run the scripts that the command line names."""
    folder = Path(sys.argv[1])
    os.environ["PYSPARK_SUBMIT_ARGS"] = OPTIONS.format(folder=folder.absolute().as_uri())
    os.environ["PYSPARK_PYTHON"] = sys.executable
    for name in sys.argv[2:]:
        print(f"== {name}", flush=True)
        run(folder, Path(name))


if __name__ == "__main__":
    main()
