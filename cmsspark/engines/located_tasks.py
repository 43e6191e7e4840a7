"""Tasks that Spark runs where their bytes are, though it does not read them: a row with a number for each task."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from cmsspark.filesystems.hadoop import HadoopFiles

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def numbered_tasks(spark: SparkSession, bytes_of_tasks: Sequence[tuple[str, int]]) -> DataFrame:
    """Return the rows 0, 1, … (column ``number``), a task each, which prefers the hosts that store one of its bytes.

    ``bytes_of_tasks``: the path of a file, and a position in it, such as the middle of what the task reads.
    """
    files = HadoopFiles(spark)
    return place_tasks(spark, [files.hosts_at(path, position) for path, position in bytes_of_tasks])


def place_tasks(spark: SparkSession, hosts: Sequence[tuple[str, ...]]) -> DataFrame:
    """Return the rows 0, 1, … (column ``number``), each a task with the hosts that it prefers."""
    from pyspark.sql import DataFrame

    if not hosts:
        return spark.range(0).toDF("number")
    jvm: Any = spark.sparkContext._jvm
    to_seq = jvm.org.apache.spark.api.python.PythonUtils.toSeq
    sequences = {names: to_seq(list(names)) for names in set(hosts)}
    tasks = [jvm.scala.Tuple2(number, sequences[names]) for number, names in enumerate(hosts)]
    context: Any = spark.sparkContext._jsc
    # Only this method of Spark takes preferred hosts; a class tag comes from any RDD.
    numbers = context.sc().makeRDD(to_seq(tasks), context.emptyRDD().classTag())
    session: Any = spark._jsparkSession
    rows = session.createDataset(numbers, jvm.org.apache.spark.sql.Encoders.INT())
    return DataFrame(rows.toDF(), spark).toDF("number")
