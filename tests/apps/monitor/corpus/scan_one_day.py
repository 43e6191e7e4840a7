"""A filter on the day, of which Spark reads one."""

# finds: nothing

import tempfile

from pyspark.sql import SparkSession
from pyspark.sql import functions as F

spark = SparkSession.builder.appName("scan_one_day").getOrCreate()
folder = tempfile.mkdtemp()
rows = spark.range(0, 1_500_000, 1, 2).selectExpr(
    "id", "cast(id % 30 as int) as day", "uuid() as name"
)
rows.repartition(2, "day").write.partitionBy("day").mode("overwrite").parquet(folder)
print(spark.read.parquet(folder).where("day = 7").agg(F.max("name")).collect())
spark.stop()
