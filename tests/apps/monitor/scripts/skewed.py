"""A stage of 40 tasks in which one task reads hundreds of MB: nine tenths of the rows
have one key.
"""

from pyspark.sql import SparkSession
from pyspark.sql import functions as F

# Not compressed, so that much is read without much being computed.
spark = SparkSession.builder.appName("skewed").config("spark.shuffle.compress", "false").getOrCreate()
key = F.when(F.col("id") % 10 == 0, F.col("id")).otherwise(F.lit(0))
rows = spark.range(0, 800_000, 1, 4).select(key.alias("key"), F.repeat(F.lit("x"), 250).alias("payload"))
rows.repartition(40, "key").write.format("noop").mode("overwrite").save()
spark.stop()
