"""A folder of many small files on a real NameNode: ``python -m bench.listing`` from the
top of a checkout.

Starts HDFS on this machine (or uses the cluster in ``--dir``), makes a folder of empty
files and measures what a run does with it: listing, fixing (the digest of names, sizes
and times), checking again at the end, and Spark's plan to read it. Counts the calls
that the NameNode gets and ends with 1 where there is a call for each file.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import shutil
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from cmsspark.submit.host import find_spark
from tests.cluster import artifacts
from tests.cluster.daemons import Cluster

#: Calls of the NameNode that ask for one file, and those that list a folder.
_BY_FILE, _LISTING = ("GetFileInfoNumOps", "GetBlockLocationsNumOps"), ("GetListingNumOps",)


#: Each call from Python would go through two sockets.
_MAKE_FILES = """
import java.net.URI;
import java.util.concurrent.*;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.*;

public class MakeFiles {
    public static void main(String[] given) throws Exception {
        Path folder = new Path(given[0]);
        FileSystem files = FileSystem.get(folder.toUri(), new Configuration());
        int first = files.exists(folder) ? (int) files.getContentSummary(folder).getFileCount() : 0;
        ExecutorService pool = Executors.newFixedThreadPool(Integer.parseInt(given[2]));
        CompletionService<Void> done = new ExecutorCompletionService<>(pool);
        int count = Integer.parseInt(given[1]);
        for (int number = first; number < count; number++) {
            final int one = number;
            done.submit(() -> {
                try (FSDataOutputStream out = files.create(new Path(folder, String.format("part-%06d.json", one)))) {
                    if (one % 1000 == 0) out.writeBytes("{}\\n");
                }
                return null;
            });
        }
        for (int number = first; number < count; number++) done.take().get();
        pool.shutdown();
    }
}
"""


def calls(cluster: Cluster) -> dict[str, int]:
    """How many calls of each kind the NameNode has had."""
    query = f"/jmx?qry=Hadoop:service=NameNode,name=RpcDetailedActivityForPort{cluster.ports['namenode-rpc']}"
    with urllib.request.urlopen(
        f"http://127.0.0.1:{cluster.ports['namenode-http']}{query}", timeout=30
    ) as answer:
        (bean,) = json.load(answer)["beans"]
    return {name: int(bean.get(name, 0)) for name in (*_BY_FILE, *_LISTING)}


@contextmanager
def measured(cluster: Cluster, what: str, results: list[dict[str, Any]]) -> Iterator[None]:
    """Measure the block."""
    before, began, cpu = calls(cluster), time.monotonic(), time.process_time()
    yield
    after = calls(cluster)
    results.append(
        {
            "what": what,
            "seconds": round(time.monotonic() - began, 2),
            "python_cpu_s": round(time.process_time() - cpu, 2),
            "asked": sum(after[name] - before[name] for name in _BY_FILE),
            "listings": sum(after[name] - before[name] for name in _LISTING),
            "python_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024,
        }
    )
    print(results[-1], flush=True)


def make_files(cluster: Cluster, folder: str, count: int) -> None:
    """Make a folder of ``count`` files, all but some of them empty, by threads of one JVM."""
    source = cluster.folder / "MakeFiles.java"
    source.write_text(_MAKE_FILES)
    classes = f"{cluster.env['HADOOP_CONF_DIR']}:{artifacts.jars()}/hadoop/*"
    java = ["java", "-Xmx512m", "-XX:TieredStopAtLevel=1", "-cp", classes, str(source)]
    subprocess.run(
        [*java, folder, str(count), "16"], check=True, env={**os.environ, **cluster.env}
    )


def measure(cluster: Cluster, count: int) -> list[dict[str, Any]]:
    """Measure a folder of so many files."""
    from cmsspark.engines.scan import read_explicit_files, set_sizes
    from cmsspark.engines.session import session
    from cmsspark.filesystems.hadoop import HadoopFiles
    from cmsspark.sources.layout import data_files, digest

    quick = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
    options = {
        "spark.master": "local[2]",
        "spark.driver.memory": "1g",
        "spark.driver.extraJavaOptions": quick,
    }
    spark = session("listing", **options)
    folder = f"{cluster.uri()}/listing/{count}"
    began = time.monotonic()
    make_files(cluster, folder, count)
    print(f"{count:,} files made in {time.monotonic() - began:.0f} s", flush=True)
    files = HadoopFiles(spark)
    results: list[dict[str, Any]] = []
    with measured(cluster, "list", results):
        listed = data_files(files, folder).files
    assert len(listed) == count
    with measured(cluster, "fix", results):
        before = digest({"": listed})
    with measured(cluster, "check", results):
        assert digest({"": data_files(files, folder).files}) == before
    with measured(cluster, "plan in Spark", results):
        set_sizes(spark, 0, count)
        rows = read_explicit_files(spark, "text", [file.path for file in listed], lineSep="\n")
        partitions = rows.rdd.getNumPartitions()
    print(f"{partitions} tasks", flush=True)
    spark.stop()
    return results


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0] if __doc__ else None)
    parser.add_argument("--files", type=int, default=100_000)
    parser.add_argument("--dir", type=Path, help="the folder of a cluster that runs")
    given = parser.parse_args()
    own = Path.home() / ".cache/cmsspark/bench/listing"
    cluster = Cluster(given.dir or own, find_spark({}).home, shutil.which("java") or "java")
    try:
        if given.dir is None:
            cluster.up()
        os.environ.update(cluster.env)
        results = measure(cluster, given.files)
    finally:
        if given.dir is None:
            cluster.remove()
    if any(result["asked"] > 100 for result in results):
        sys.exit("the NameNode was asked for single files")


if __name__ == "__main__":
    main()
