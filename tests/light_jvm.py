"""Options for JVMs of Spark that live shortly, and an archive of its classes: ``python
-m tests.light_jvm`` makes it.

With the archive such a JVM takes half the CPU time to start. Where it is not there, or
is of another Spark or Java, a JVM starts without it.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import psutil

ARCHIVE = Path(__file__).resolve().parents[1] / "build" / "spark.jsa"
#: Compilers and collectors cost more than they bring.
_FEW_THREADS = "-XX:+UseSerialGC -XX:TieredStopAtLevel=1"
#: A JVM that cannot use the archive would print why.
LIGHT = (
    f"{_FEW_THREADS} -XX:SharedArchiveFile={ARCHIVE} -Xlog:disable"
    if ARCHIVE.exists()
    else _FEW_THREADS
)


def main() -> None:
    """Write the archive when a small session ends, which has loaded what most others load."""
    from cmsspark.engines.session import session

    ARCHIVE.parent.mkdir(exist_ok=True)
    options = f"{_FEW_THREADS} -XX:ArchiveClassesAtExit={ARCHIVE} -Xlog:disable"
    spark = session(
        "archive",
        **{
            "spark.master": "local[2]",
            "spark.ui.enabled": "false",
            "spark.driver.extraJavaOptions": options,
        },
    )
    with tempfile.TemporaryDirectory() as folder:
        rows = spark.range(1000).selectExpr("id", "cast(id % 7 as string) as name")
        rows.write.parquet(f"{folder}/rows")
        rows.write.csv(f"{folder}/csv")
        stored = (
            spark.read.parquet(f"{folder}/rows")
            .groupBy("name")
            .sum("id")
            .withColumnRenamed("sum(id)", "total")
        )
        stored.join(rows, "name").orderBy("id").collect()
        spark.read.text(f"{folder}/csv").count()
    jvms = psutil.Process().children()
    spark.stop()
    gateway = type(spark.sparkContext)._gateway
    gateway.shutdown()
    gateway.proc.stdin.close()
    psutil.wait_procs(jvms, timeout=300)


if __name__ == "__main__":
    main()
