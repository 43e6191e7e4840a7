"""A UDF on rows is most of the time of a query."""

# finds: python_udf

import hashlib

from pyspark.sql import SparkSession
from pyspark.sql import functions as F

spark = SparkSession.builder.appName("udf_rows").getOrCreate()


@F.udf("string")
def digest(name):
    for _ in range(4):
        name = hashlib.sha256(name.encode()).hexdigest()
    return name


rows = spark.range(0, 1_200_000, 1, 4).selectExpr("concat('/store/', id) as name")
print(rows.select(digest("name").alias("d")).agg(F.max("d")).collect())
spark.stop()
