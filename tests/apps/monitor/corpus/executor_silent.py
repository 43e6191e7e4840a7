"""An executor hangs, and its heartbeats end."""

# finds: heartbeat

import os
import signal
import time

from pyspark.sql import SparkSession

builder = SparkSession.builder.appName("executor_silent")
spark = (
    builder.config("spark.master", "local-cluster[2,1,512]")
    .config("spark.executor.memory", "512m")
    .config("spark.executor.cores", "1")
    .config("spark.network.timeout", "12s")
    .config("spark.network.timeoutInterval", "4s")
    .config("spark.executor.heartbeatInterval", "2s")
    .config("spark.storage.blockManagerHeartbeatTimeoutMs", "12000")
    .getOrCreate()
)


def work(number, rows):
    from pyspark import TaskContext

    if number == 1 and TaskContext.get().attemptNumber() == 0:
        java = next(
            int(line.split()[1])
            for line in open(f"/proc/{os.getppid()}/status")
            if line.startswith("PPid")
        )
        os.kill(java, signal.SIGSTOP)
        time.sleep(40)
        os.kill(java, signal.SIGKILL)
    return rows


print(spark.sparkContext.parallelize(range(10), 2).mapPartitionsWithIndex(work).count())
spark.stop()
