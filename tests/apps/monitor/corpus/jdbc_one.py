"""A table of a database through one connection."""

# finds: jdbc_one_connection

from pyspark.sql import SparkSession
from pyspark.sql import functions as F

spark = SparkSession.builder.appName("jdbc_one").getOrCreate()
url = "jdbc:derby:memory:one;create=true"
options = {"url": url, "dbtable": "files", "driver": "org.apache.derby.iapi.jdbc.AutoloadedDriver"}
rows = spark.range(0, 150_000, 1, 2).selectExpr("id", "id % 97 as site")
rows.write.format("jdbc").options(**options, batchsize="10000").save()

files = spark.read.format("jdbc").options(**options).load()
print(files.groupBy("site").agg(F.max("id")).count())
spark.stop()
