"""A large object of the JVM pulled through Py4J, beside no work at all; the first
argument is its size in characters.
"""

import sys

from pyspark.sql import SparkSession

from tests.apps.monitor.sampled import until_sampled

spark = SparkSession.builder.appName("py4j").getOrCreate()
print(spark.range(1000).count())
until_sampled()  # idle, and still small
model = spark._jvm.org.apache.commons.lang3.StringUtils.repeat("x", int(sys.argv[1]))
print(len(model))
until_sampled()  # a program goes on with what it has got
spark.stop()
