"""All rows are sorted and written."""

# finds: nothing

from pyspark.sql import SparkSession
from pyspark.sql import functions as F

spark = SparkSession.builder.appName("sorted_table").getOrCreate()
spark.range(200_000).select(F.rand(7).alias("x")).orderBy("x").write.format("noop").mode(
    "overwrite"
).save()
spark.stop()
