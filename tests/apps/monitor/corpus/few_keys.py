"""Three keys in sixteen partitions: most are empty."""

# finds: nothing

from pyspark.sql import SparkSession
from pyspark.sql import functions as F

spark = SparkSession.builder.appName("few_keys").getOrCreate()
rows = spark.range(0, 400_000, 1, 4).select((F.col("id") % 3).alias("key"), "id")
print(rows.repartition(16, "key").groupBy("key").agg(F.sum("id")).collect())
spark.stop()
