"""One record is expensive to parse."""

# finds: straggler

import time

from pyspark.sql import SparkSession

spark = SparkSession.builder.appName("straggler_row").getOrCreate()


def parse(batches):
    for batch in batches:
        if batch.column(0)[0].as_py() == 6000:
            time.sleep(18)
        yield batch


print(spark.range(0, 10_000, 1, 10).mapInArrow(parse, "id long").count())
spark.stop()
