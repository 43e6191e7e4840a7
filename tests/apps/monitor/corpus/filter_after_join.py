"""A filter by a UDF after a join, which needs columns of one side only."""

# finds: filter_after_join

from pyspark.sql import SparkSession
from pyspark.sql import functions as F

spark = (
    SparkSession.builder.appName("filter_after_join")
    .config("spark.sql.autoBroadcastJoinThreshold", "-1")
    .getOrCreate()
)
is_tape = F.udf(lambda site: site.endswith("7"), "boolean").asNondeterministic()
accesses = spark.range(0, 800_000, 1, 4).selectExpr(
    "id % 200000 as file", "concat('T', id % 100) as site"
)
files = spark.range(0, 200_000, 1, 2).selectExpr("id as file", "uuid() as dataset")
joined = accesses.join(files, "file").where(is_tape("site"))
print(joined.agg(F.max("dataset")).collect())
spark.stop()
