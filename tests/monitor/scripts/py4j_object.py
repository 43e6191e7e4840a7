"""A large object of the JVM pulled through Py4J, beside no work at all; the first argument is its size in characters."""

import sys
import time

from pyspark.sql import SparkSession

spark = SparkSession.builder.appName("py4j").getOrCreate()
print(spark.range(1000).count())
time.sleep(3)  # the rise is told apart from the query by a look between the two
model = spark._jvm.org.apache.commons.lang3.StringUtils.repeat("x", int(sys.argv[1]))
print(len(model))
time.sleep(2)  # a program goes on with what it has got
spark.stop()
