"""What spark-submit starts for a built-in job: ``launch.py JOB [job options]``.

It stands alone on purpose: on a cluster it is copied out of the package, and the
package comes as a zip.
"""

from __future__ import annotations

import os
import sys
from typing import NoReturn


def find_stderr() -> None:
    """Take back the stderr of ``run_spark``: spark-submit ties a job's own to its
    stdout, where results go.
    """
    path = os.environ.pop("CMSSPARK_STDERR", None)
    if not path:
        return
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_NOCTTY)
    except OSError:
        return  # the wrapper has ended, or belongs to another user: use stdout
    os.dup2(descriptor, 2)
    os.close(descriptor)


def main() -> NoReturn:
    find_stderr()
    from cmsspark.base import memory, reporting, self_metrics

    # Inherited by the workers that are forked.
    memory.search_garbage_seldom()
    reporting.set_program("run_spark")
    memory.check_room()
    from cmsspark.run.job_modules import job_of_word
    from cmsspark.settings import pseudonyms
    from cmsspark.settings.settings import load_typed_settings
    from cmsspark.submit.job_help import load_command

    def work() -> object:
        pseudonyms.take_from_environment(os.environ)
        load_typed_settings(sys.argv[2:], os.environ)
        job = job_of_word(sys.argv[1])
        return reporting.run_click(load_command(job), f"run_spark {job.name}", sys.argv[2:])

    def run() -> NoReturn:
        reporting.run_and_exit(work)

    if self_metrics.measured_run() is None:
        run()
    from cmsspark.apps.monitor.spark_watch import measuring

    measuring(run)


if __name__ == "__main__":
    main()
