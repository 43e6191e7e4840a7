"""The same digests by a function of Spark."""

# finds: nothing

from pyspark.sql import SparkSession
from pyspark.sql import functions as F

spark = SparkSession.builder.appName("udf_built_in").getOrCreate()
rows = spark.range(0, 1_200_000, 1, 4).selectExpr("concat('/store/', id) as name")
digest = F.sha2(F.sha2(F.sha2(F.sha2("name", 256), 256), 256), 256)
print(rows.select(digest.alias("d")).agg(F.max("d")).collect())
spark.stop()
