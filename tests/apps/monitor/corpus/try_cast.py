"""Values that are no numbers, with texts of other errors in them."""

# finds: nothing

from pyspark.sql import SparkSession

spark = SparkSession.builder.appName("try_cast").getOrCreate()
rows = spark.range(1000).selectExpr(
    "concat('No space left on device, heartbeat timed out ', id) as text"
)
print(rows.selectExpr("try_cast(text as int) as n").agg({"n": "count"}).collect())
spark.stop()
