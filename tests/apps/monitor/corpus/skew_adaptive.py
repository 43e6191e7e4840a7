"""Most rows have one key; adaptive execution joins the other partitions."""

# finds: skewed_stage

from pyspark.sql import SparkSession, Window
from pyspark.sql import functions as F

spark = (
    SparkSession.builder.appName("skew_adaptive")
    .config("spark.sql.shuffle.partitions", "200")
    .config("spark.shuffle.compress", "false")
    .getOrCreate()
)
rows = spark.range(0, 500_000, 1, 4).selectExpr(
    "if(id % 10 < 7, 7, id % 3000) as key", "id", "concat(id, repeat('y', 120)) as payload"
)
latest = Window.partitionBy("key").orderBy("payload")
ranked = rows.withColumn("n", F.row_number().over(latest))
ranked.write.format("noop").mode("overwrite").save()
spark.stop()
