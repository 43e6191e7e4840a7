"""Few groups are sorted and collected."""

# finds: nothing

from pyspark.sql import SparkSession
from pyspark.sql import functions as F

spark = SparkSession.builder.appName("sorted_groups").getOrCreate()
print(
    len(
        spark.range(300_000).groupBy((F.col("id") % 500).alias("k")).count().orderBy("k").collect()
    )
)
spark.stop()
