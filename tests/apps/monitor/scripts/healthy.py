"""A job as it should be: groups, a join, a cache that is read twice, the first rows of
a sort, Arrow batches in Python.
"""

from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from tests.apps.monitor.sampled import until_sampled

spark = SparkSession.builder.appName("healthy").getOrCreate()
rows = spark.range(0, 200_000, 1, 4).select((F.col("id") % 97).alias("key"), F.rand(7).alias("value"))
sums = rows.groupBy("key").agg(F.sum("value").alias("total")).cache()
print(sums.count(), sums.agg(F.max("total")).collect()[0][0] > 0)
print(sums.orderBy(F.desc("total")).limit(3).collect()[0].key >= 0)
print(rows.join(sums, on="key", how="inner").where("value > 0.5").count() > 0)


def twice(batches):
    from tests.apps.monitor.sampled import until_sampled

    # Spark takes the metrics of an executor each second, and keeps those of tasks that
    # run: three samples of ours last longer than that.
    for _ in range(3):
        until_sampled(lambda sample: sample.get("workers", 0) > 0 and sample.get("driver_python_rss", 0) > 0)
    yield from batches


print(rows.mapInArrow(twice, rows.schema).count())
spark.stop()
