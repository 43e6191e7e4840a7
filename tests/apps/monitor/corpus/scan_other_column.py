"""A filter on a column by which the table is not divided."""

# finds: nothing

import tempfile

from pyspark.sql import SparkSession
from pyspark.sql import functions as F

spark = SparkSession.builder.appName("scan_other_column").getOrCreate()
folder = tempfile.mkdtemp()
rows = spark.range(0, 1_500_000, 1, 2).selectExpr(
    "id", "cast(id % 30 as int) as day", "uuid() as name"
)
rows.repartition(2, "day").write.partitionBy("day").mode("overwrite").parquet(folder)
table = spark.read.parquet(folder)
print(table.where("name like 'a%7'").groupBy("day").agg(F.max("name")).count())
spark.stop()
