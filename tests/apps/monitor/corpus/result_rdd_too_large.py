"""An RDD's rows beyond spark.driver.maxResultSize."""

# finds: max_result_size

import os

from pyspark.sql import SparkSession

builder = SparkSession.builder.appName("result_rdd_too_large")
spark = builder.config("spark.driver.maxResultSize", "1m").getOrCreate()
print(
    len(spark.sparkContext.parallelize(range(8), 4).map(lambda n: os.urandom(700_000)).collect())
)
spark.stop()
