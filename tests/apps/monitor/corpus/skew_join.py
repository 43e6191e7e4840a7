"""A join whose key is mostly one value."""

# finds: skewed_stage

from pyspark.sql import SparkSession
from pyspark.sql import functions as F

builder = SparkSession.builder.appName("skew_join")
spark = (
    builder.config("spark.sql.adaptive.enabled", "false")
    .config("spark.sql.autoBroadcastJoinThreshold", "-1")
    .config("spark.sql.shuffle.partitions", "12")
    .config("spark.shuffle.compress", "false")
    .getOrCreate()
)
rows = spark.range(0, 1_200_000, 1, 4).selectExpr(
    "if(id % 20 = 0, id, 7) as key", "repeat('y', 60) as payload"
)
other = spark.range(0, 600_000, 1, 2).selectExpr("id as key", "repeat('z', 40) as name")
print(rows.join(other, "key").agg(F.max("payload"), F.max("name")).collect())
spark.stop()
