"""The same filter before the join."""

# finds: nothing

from pyspark.sql import SparkSession
from pyspark.sql import functions as F

spark = (
    SparkSession.builder.appName("filter_before_join")
    .config("spark.sql.autoBroadcastJoinThreshold", "-1")
    .getOrCreate()
)
accesses = spark.range(0, 4_000_000, 1, 4).selectExpr(
    "id % 200000 as file", "concat('T', id % 100) as site"
)
files = spark.range(0, 200_000, 1, 2).selectExpr("id as file", "uuid() as dataset")
joined = accesses.where("site like '%7'").join(files, "file")
print(joined.agg(F.max("dataset")).collect())
spark.stop()
