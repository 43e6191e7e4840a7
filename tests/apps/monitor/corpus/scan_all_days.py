"""A filter on the day by a UDF, so that all days are read."""

# finds: full_scan

import tempfile

from pyspark.sql import SparkSession
from pyspark.sql import functions as F

spark = SparkSession.builder.appName("scan_all_days").getOrCreate()
folder = tempfile.mkdtemp()
rows = spark.range(0, 1_500_000, 1, 2).selectExpr(
    "id", "cast(id % 30 as int) as day", "uuid() as name"
)
rows.repartition(2, "day").write.partitionBy("day").mode("overwrite").parquet(folder)
is_wanted = F.udf(lambda day: day == 7, "boolean")
print(spark.read.parquet(folder).where(is_wanted("day")).agg(F.max("name")).collect())
spark.stop()
