"""What spark-submit starts for a built-in job: ``launch.py JOB [job options]``.

It stands alone on purpose: on a cluster it is copied out of the package, and the package comes as a zip.
"""

from __future__ import annotations

import sys


def main() -> None:
    from cmsspark import errors
    from cmsspark.jobs import find_job, load_command

    job = find_job(sys.argv[1])
    errors.run_and_exit(lambda: errors.run_click(load_command(job), f"run_spark {job.name}", sys.argv[2:]))


if __name__ == "__main__":
    main()
