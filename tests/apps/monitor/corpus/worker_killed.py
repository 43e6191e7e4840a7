"""The system kills a Python worker."""

# finds: python_worker_killed

import os
import signal

from pyspark.sql import SparkSession

spark = SparkSession.builder.appName("worker_killed").getOrCreate()


def work(rows):
    os.kill(os.getpid(), signal.SIGKILL)
    return rows


print(spark.sparkContext.parallelize(range(10), 2).mapPartitions(work).count())
spark.stop()
