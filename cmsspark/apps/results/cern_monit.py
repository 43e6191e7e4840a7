"""``run_spark cern_monit``: publish a stored result, also from a store on HDFS.
``cmsspark publish`` does the same.
"""

from __future__ import annotations

from cmsspark.publish.cli import publish_command

command = publish_command("cern_monit")
