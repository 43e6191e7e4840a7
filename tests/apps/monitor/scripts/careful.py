"""The same work without what cmsspark lab lint finds."""

from pyspark.sql import SparkSession
from pyspark.sql import functions as F
from pyspark.sql.functions import udf

spark = SparkSession.builder.getOrCreate()
accesses = spark.read.parquet("/data/accesses")

sums = accesses.groupBy("site_name").agg(F.sum("read_bytes").alias("read_bytes"))
for row in sums.collect():
    print(row.site_name, "_".join([row.site_name] * 2).count("T2"))


@udf("string", useArrow=True)
def tier(name):
    return name.split("_")[0]


if accesses.isEmpty():
    raise SystemExit("nothing was read")
if accesses.count() > 1000:
    accesses.repartition(200, "site_name").write.parquet("/data/parts")
sums.coalesce(1).write.parquet("/data/few")
table = accesses.groupBy("site_name").count().toPandas()
first = accesses.limit(100).toPandas()
largest = accesses.orderBy("read_bytes").limit(10).collect()
counts = [accesses.groupBy(column).count() for column in ("site_name", "app")]
small = [frame.count() for frame in counts]  # noqa: SPK101
everything = accesses.toPandas()  # noqa
print(table, first, largest, small, everything)
