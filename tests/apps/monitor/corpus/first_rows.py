"""The first rows, as Spark finds them without a sort of all."""

# finds: nothing

from pyspark.sql import SparkSession
from pyspark.sql import functions as F

spark = SparkSession.builder.appName("first_rows").getOrCreate()
print(spark.range(300_000).select(F.rand(7).alias("x")).orderBy("x").limit(5).collect())
print(spark.sparkContext.parallelize(range(50_000), 2).takeOrdered(3))
spark.stop()
