"""Arrays of the JVM that a list keeps, until no heap is left. The argument: bytes in
use of a heap that is full.
"""

import sys

from py4j.protocol import Py4JError
from pyspark.sql import SparkSession

from tests.apps.monitor.sampled import until_sampled

spark = SparkSession.builder.appName("full").getOrCreate()
print(spark.range(1000).count())
gateway = spark.sparkContext._gateway
kept = gateway.jvm.java.util.ArrayList()
try:
    while True:
        kept.add(gateway.new_array(gateway.jvm.long, 500_000))
except Py4JError:
    # The list keeps them: the heap stays full while the script is told.
    until_sampled(lambda sample: sample.get("heap_bytes", 0) >= int(sys.argv[1]))
    raise
