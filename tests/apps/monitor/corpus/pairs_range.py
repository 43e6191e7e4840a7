"""An interval join without an equal key compares every event with every span."""

# finds: cartesian_join

from pyspark.sql import SparkSession
from pyspark.sql import functions as F

spark = SparkSession.builder.appName("pairs_range").getOrCreate()
events = spark.range(40_000).select((F.col("id") * 7 % 40_000).alias("at"))
spans = spark.range(800).select(
    (F.col("id") * 50).alias("begin"), (F.col("id") * 50 + 20).alias("end")
)
print(
    events.join(
        spans, (F.col("at") >= F.col("begin")) & (F.col("at") < F.col("end")), "left"
    ).count()
)
spark.stop()
