"""A UDF handles what it cannot parse."""

# finds: nothing

from pyspark.sql import SparkSession
from pyspark.sql import functions as F

spark = SparkSession.builder.appName("udf_careful").getOrCreate()


@F.udf("long", useArrow=True)
def parse(text):
    try:
        return int(text)
    except ValueError:
        return None


print(
    spark.range(2000)
    .select(parse(F.concat(F.lit("x"), "id")).alias("n"))
    .agg(F.count("n"))
    .collect()
)
spark.stop()
