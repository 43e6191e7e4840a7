"""``run_spark cern_monit``: publish a stored result, also from a store on HDFS.
``cmsspark publish`` does the same.
"""

from __future__ import annotations

from cmsspark.publish.cli import publish_command
from cmsspark.store.own_jobs import Job, declare

declare(
    Job(
        "cern_monit",
        "Publish a stored day to MONIT",
        (),
        aliases=("cern_monit3",),
        needs_spark=False,
        module=__name__,
    ),
    lambda: publish_command("cern_monit"),
)
