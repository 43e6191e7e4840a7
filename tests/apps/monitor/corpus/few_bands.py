"""Each value is compared with ten bands."""

# finds: nothing

from pyspark.sql import SparkSession
from pyspark.sql import functions as F

spark = SparkSession.builder.appName("few_bands").getOrCreate()
values = spark.range(600_000).select((F.col("id") % 1000).alias("value"))
bands = spark.createDataFrame(
    [(n, 100 * n, 100 * n + 100) for n in range(10)], "band int, low int, high int"
)
print(
    values.join(bands, F.expr("value >= low and value < high")).groupBy("band").count().collect()
)
spark.stop()
