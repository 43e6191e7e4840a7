"""One partition has most rows, which are small."""

# finds: skewed_stage

from pyspark.sql import SparkSession
from pyspark.sql import functions as F

spark = SparkSession.builder.appName("skew_rows").getOrCreate()
key = F.when(F.col("id") % 8 == 0, F.col("id")).otherwise(F.lit(1))
rows = spark.range(0, 1_500_000, 1, 4).select(key.alias("key"), "id").repartition(24, "key")
print(
    rows.sortWithinPartitions("id")
    .select(F.sha2(F.col("id").cast("string"), 512).alias("d"))
    .agg(F.max("d"))
    .collect()
)
spark.stop()
