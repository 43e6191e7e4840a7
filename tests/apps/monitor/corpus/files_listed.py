"""Many folders are listed by tasks of Spark."""

# finds: nothing

import tempfile
from pathlib import Path

from pyspark.sql import SparkSession

spark = SparkSession.builder.appName("files_listed").getOrCreate()
folder = Path(tempfile.mkdtemp())
for day in range(60):
    (folder / f"day={day}").mkdir()
    (folder / f"day={day}" / "part.json").write_text('{"n": 1}\n' * 40000)
print(spark.read.schema("n long").json(str(folder)).groupBy("day").count().count())
spark.stop()
