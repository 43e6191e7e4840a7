"""An RDD is sorted for its first five rows."""

# finds: sort_for_first_rows

from pyspark.sql import SparkSession

spark = SparkSession.builder.appName("sorted_rdd").getOrCreate()
rows = spark.sparkContext.parallelize(range(400_000), 4).map(
    lambda n: (n * 7919 % 400_009, "x" * (n % 7))
)
print(rows.sortBy(lambda row: row[0]).take(5))
spark.stop()
