"""Everything that cmsspark lab lint finds, once each. It is never run."""

from pyspark.sql import SparkSession, Window
from pyspark.sql.functions import *  # SPK103
from pyspark.sql.functions import udf

spark = SparkSession.builder.getOrCreate()
accesses = spark.read.parquet("/data/accesses")

for site in ["T1_US_FNAL", "T2_CH_CERN"]:
    rows = accesses.filter(accesses.site_name == site).collect()  # SPK101


@udf("string")  # SPK102
def tier(name):
    return name.split("_")[0]


if accesses.count() == 0:  # SPK104
    raise SystemExit("nothing was read")

few = accesses.join(spark.table("sites"), "site_name").coalesce(1)  # SPK105
few.write.parquet("/data/few")
files = spark.read.jdbc("jdbc:oracle:thin:@db", "files").cache()  # SPK115 SPK114
sizes = files.groupBy("dataset").sum("size")
sizes.write.parquet("/data/sizes")
sizes.where("size > 0").write.parquet("/data/large")
lines = spark.sparkContext.accumulator(0)
pairs = accesses.rdd.map(lambda row: (row.lfn, lines.add(1)))  # SPK117
late = pairs.join(pairs).filter(lambda pair: pair[0] != "")  # SPK113
kept = accesses.where("read_bytes > 0").collect()
again = spark.createDataFrame(kept)  # SPK112
for day in range(9):
    again = again.union(spark.read.parquet(f"/data/{day}"))  # SPK116

table = (
    accesses.select("site_name", tier("site_name")).toPandas()  # SPK106
)
largest = accesses.orderBy("read_bytes").collect()[:10]  # SPK107
ranked = accesses.withColumn("rank", row_number().over(Window.orderBy("read_bytes")))  # SPK108
for name in accesses.columns:
    ranked = ranked.withColumn(name, trim(name))  # SPK109
sums = accesses.rdd.map(lambda row: (row.site_name, 1)).groupByKey().mapValues(len)  # SPK110
everything = accesses.select("site_name").collect()  # SPK111
print(max([1, 2, 3]), rows, table, largest, ranked, sums, everything)
