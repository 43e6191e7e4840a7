"""A UDF raises for one row."""

# finds: failed_task

from pyspark.sql import SparkSession
from pyspark.sql import functions as F

spark = SparkSession.builder.appName("udf_raises").getOrCreate()


@F.udf("long")
def parse(number):
    if number == 777:
        raise ValueError(f"cannot parse {number}")
    return number


spark.range(2000).select(parse("id")).write.format("noop").mode("overwrite").save()
spark.stop()
