"""A table of a database through four connections."""

# finds: nothing

from pyspark.sql import SparkSession
from pyspark.sql import functions as F

spark = SparkSession.builder.appName("jdbc_parts").getOrCreate()
url = "jdbc:derby:memory:parts;create=true"
options = {"url": url, "dbtable": "files", "driver": "org.apache.derby.iapi.jdbc.AutoloadedDriver"}
rows = spark.range(0, 150_000, 1, 2).selectExpr("id", "id % 97 as site")
rows.write.format("jdbc").options(**options, batchsize="10000").save()
options |= {
    "partitionColumn": "id",
    "lowerBound": "0",
    "upperBound": "150000",
    "numPartitions": "4",
}
files = spark.read.format("jdbc").options(**options).load()
print(files.groupBy("site").agg(F.max("id")).count())
spark.stop()
