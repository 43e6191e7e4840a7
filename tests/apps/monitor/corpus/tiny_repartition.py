"""20,000 rows in 1,000 partitions."""

# finds: tiny_tasks

from pyspark.sql import SparkSession

spark = SparkSession.builder.appName("tiny_repartition").getOrCreate()
spark.range(20_000).repartition(1000).write.format("noop").mode("overwrite").save()
spark.stop()
