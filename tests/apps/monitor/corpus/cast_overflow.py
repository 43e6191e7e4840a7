"""A cast that ANSI rules refuse."""

# finds: failed_task

from pyspark.sql import SparkSession

spark = (
    SparkSession.builder.appName("cast_overflow")
    .config("spark.sql.ansi.enabled", "true")
    .getOrCreate()
)
rows = spark.range(1000).selectExpr("cast(concat('x', id) as string) as text")
print(rows.selectExpr("cast(text as int) as n").agg({"n": "sum"}).collect())
spark.stop()
