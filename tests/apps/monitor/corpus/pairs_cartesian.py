"""A product of two tables that no broadcast takes."""

# finds: cartesian_join

from pyspark.sql import SparkSession

builder = SparkSession.builder.appName("pairs_cartesian")
spark = builder.config("spark.sql.autoBroadcastJoinThreshold", "-1").getOrCreate()
left, right = (
    spark.range(0, 5000, 1, 3),
    spark.range(0, 3000, 1, 2).withColumnRenamed("id", "other"),
)
print(left.crossJoin(right).where("(id + other) % 1000 = 1").count())
spark.stop()
