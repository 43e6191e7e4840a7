"""A task writes to a full device."""

# finds: no_space

from pyspark.sql import SparkSession

spark = SparkSession.builder.appName("disk_full").getOrCreate()


def work(rows):
    with open("/dev/full", "w") as file:
        file.write("x" * 100_000)
    return rows


print(spark.sparkContext.parallelize(range(10), 2).mapPartitions(work).count())
spark.stop()
