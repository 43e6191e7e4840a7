"""What ``yarn.py`` has a small JVM do: ``logs APPLICATION FOLDER`` or ``kill
APPLICATION``, with Spark's own jars.

It stands alone: spark-submit starts it by its path.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any

#: A node hands logs over some seconds after the end.
_PATIENCE_S = 20


def main(argv: list[str]) -> int:
    """Do what the words say; 0 when it was done."""
    from pyspark.java_gateway import launch_gateway

    jvm: Any = launch_gateway().jvm
    conf = jvm.org.apache.hadoop.yarn.conf.YarnConfiguration()
    application = jvm.org.apache.hadoop.yarn.api.records.ApplicationId.fromString(argv[1])
    if argv[0] == "kill":
        client = jvm.org.apache.hadoop.yarn.client.api.YarnClient.createYarnClient()
        client.init(conf)
        client.start()
        client.killApplication(application)
        return 0
    end = time.monotonic() + _PATIENCE_S
    while not fetch(jvm, conf, application, argv[2]):
        if time.monotonic() > end:
            return 1
        time.sleep(1)
    return 0


def fetch(jvm: Any, conf: Any, application: Any, folder: str) -> bool:
    """Copy the logs that YARN has collected; False while those of the first container
    are not among them.
    """
    api = jvm.org.apache.hadoop.yarn.logaggregation
    helper = api.LogCLIHelpers()
    helper.setConf(conf)
    request = api.ContainerLogsRequest()
    request.setAppId(application)
    request.setAppOwner(
        jvm.org.apache.hadoop.security.UserGroupInformation.getCurrentUser().getShortUserName()
    )
    request.setOutputLocalDir(folder)
    request.setBytes(1 << 20)
    names = jvm.java.util.HashSet()
    names.add("stdout")
    names.add("stderr")
    request.setLogTypes(names)
    helper.dumpAllContainersLogs(request)
    return any(Path(folder).rglob("container_*_000001"))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
