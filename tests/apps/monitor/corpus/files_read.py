"""130 files of a kilobyte are read."""

# finds: small_files

import pathlib
import tempfile

from pyspark.sql import SparkSession

spark = SparkSession.builder.appName("files_read").getOrCreate()
with tempfile.TemporaryDirectory() as folder:
    for number in range(130):
        pathlib.Path(folder, f"{number}.json").write_text(f'{{"n": {number}}}\n' * 20)
    print(spark.read.schema("n int").json(folder).agg({"n": "sum"}).collect())
spark.stop()
