"""A join of accesses with the files that they are of."""

# finds: nothing

from pyspark.sql import SparkSession
from pyspark.sql import functions as F

spark = SparkSession.builder.appName("join_one_to_many").getOrCreate()
accesses = spark.range(0, 3_000_000, 1, 4).selectExpr("id % 20000 as file", "id as a")
files = spark.range(0, 20_000, 1, 2).selectExpr("id as file", "id % 50 as dataset")
print(accesses.join(files, "file").groupBy("dataset").agg(F.max("a")).count())
spark.stop()
