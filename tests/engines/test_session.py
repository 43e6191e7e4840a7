"""What Spark wraps around an error, and says of a disk, a worker or a file, comes to an
error of ours.
"""

from __future__ import annotations

from typing import Any

import pytest

from cmsspark.base import errors
from cmsspark.engines.session import LATE_COMPILER, NEEDED, session, unwrap_cause, why_not_started

IN_A_WORKER = """An error occurred while calling o1.collectToPython.
: org.apache.spark.SparkException: Job aborted due to stage failure: PythonException: Traceback (most recent call last):
  File "/x/scan.py", line 1, in run
cmsspark.base.errors.DataError: a gzip file is damaged
  where: /day/part 0.gz
  found: cut: short
  next: fetch it again
 SQLSTATE: 38000
\tat org.apache.spark.X.y(X.scala:1)
"""
JAVA = "An error occurred while calling None.org.apache.spark.api.java.JavaSparkContext.\n: "
UNREAD = """SparkException: [FAILED_READ_FILE.NO_HINT] Encountered error while reading file {}.  SQLSTATE
\tat org.apache.spark.X.y(X.scala:1)
Caused by: {}
\t... 40 more
"""
UNWRITTEN = """SparkException: [TASK_WRITE_FAILED] Task failed while writing rows to file:/full/store. SQLSTATE
\tat org.apache.spark.X.y(X.scala:1)
Caused by: org.apache.hadoop.fs.FSError: java.io.IOException: {}
\tat java.base/java.io.X.y(X.java:1)
"""


def test_an_error_of_a_task_comes_back_with_all_its_parts() -> None:
    error = unwrap_cause(RuntimeError(IN_A_WORKER))
    assert isinstance(error, errors.DataError)
    assert (error.problem, error.where, error.found, error.next_step) == (
        "a gzip file is damaged",
        "/day/part 0.gz",
        "cut: short",
        "fetch it again",
    )


@pytest.mark.parametrize(
    ("cause", "code"),
    [
        ("java.io.EOFException: Unexpected end of input stream", 65),
        ("java.util.zip.ZipException: invalid block type", 65),
        ("java.io.FileNotFoundException: File does not exist: /x", 66),
        ("org.apache.hadoop.security.AccessControlException: Permission denied: user=me", 77),
        ("org.apache.hadoop.hdfs.BlockMissingException: Could not obtain block", 65),
        ("org.apache.hadoop.hdfs.BlockMissingException: No live nodes: Connection refused", 75),
        ("org.apache.hadoop.fs.ChecksumException: Checksum error: /x at 512 exp: 1 got: 2", 65),
        ("java.net.ConnectException: Connection refused", 75),
    ],
)
def test_a_file_that_spark_cannot_read_is_named_with_the_code_of_its_cause(
    cause: str, code: int
) -> None:
    error = unwrap_cause(RuntimeError(UNREAD.format("hdfs://nn/day/part%200.gz", cause)))
    assert isinstance(error, errors.CmssparkError)
    assert (error.exit_code, error.where) == (code, "hdfs://nn/day/part%200.gz")


def test_a_file_that_is_gone_is_named_without_what_spark_supposes() -> None:
    text = "hdfs://nn/day/part-0. File does not exist. It is possible the underlying files have been updated."
    error = unwrap_cause(RuntimeError(UNREAD.format(text, "java.io.FileNotFoundException: x")))
    assert isinstance(error, errors.InputMissing) and error.where == "hdfs://nn/day/part-0"


@pytest.mark.parametrize(
    "reason",
    [
        "No space left on device",
        "Disk quota exceeded",
        "Permission denied",
        "org.apache.hadoop.hdfs.protocol.DSQuotaExceededException: The DiskSpace quota",
    ],
)
def test_a_result_that_cannot_be_written_is_73_with_its_place_and_reason(reason: str) -> None:
    error = unwrap_cause(RuntimeError(UNWRITTEN.format(reason)))
    assert isinstance(error, errors.OutputError)
    assert error.where == "file:/full/store"
    assert str(error.found) in reason or reason in str(error.found)


def test_no_room_for_shuffled_rows_is_73() -> None:
    text = "SparkException: Job aborted due to stage failure: java.io.IOException: No space left on device"
    assert isinstance(unwrap_cause(RuntimeError(text)), errors.OutputError)


def test_a_worker_that_is_gone_may_be_tried_again() -> None:
    error = unwrap_cause(
        RuntimeError("SparkException: Python worker exited unexpectedly (crashed): EOFError")
    )
    assert isinstance(error, errors.NotReady)
    assert error.exit_code == 75


def test_a_sum_beyond_64_bits_is_the_datas() -> None:
    assert isinstance(
        unwrap_cause(RuntimeError("[ARITHMETIC_OVERFLOW] long overflow")), errors.DataError
    )


def test_any_other_error_stays_what_it_is() -> None:
    error = KeyError("x")
    assert unwrap_cause(error) is error


LOST = """Job aborted due to stage failure: Task 0 in stage 1.0 failed 4 times, most recent failure: Lost task 0.3 in \
stage 1.0 (TID 7) (h executor 4): ExecutorLostFailure (executor 4 exited caused by one of the running tasks) Reason: \
Container killed by YARN for exceeding physical memory limits. 1.5 GB of 1.5 GB physical memory used.
Driver stacktrace:
"""


def test_an_executor_that_yarn_ended_is_reported_with_yarns_reason() -> None:
    error = unwrap_cause(RuntimeError(LOST))
    assert isinstance(error, errors.NotReady)
    assert "exceeding physical memory limits. 1.5 GB" in str(error.found)
    assert "spark.executor.memoryOverhead" in str(error.next_step)


@pytest.mark.parametrize(
    "text",
    [
        "Job 3 cancelled because SparkContext was shut down",
        "Cannot call methods on a stopped SparkContext.",
        "[Errno 111] Connection refused",
        "Answer from Java side is empty",
        'because the return value of "org.apache.spark.SparkContext.dagScheduler()" is null at org',
    ],
)
def test_an_application_that_ends_under_its_job_may_be_tried_again(text: str) -> None:
    assert isinstance(unwrap_cause(RuntimeError(text)), errors.NotReady)


def test_of_an_application_that_ended_sparks_words_are_shown_and_not_py4js() -> None:
    reason = "org.apache.spark.SparkException: Job 0 cancelled because SparkContext was shut down"
    text = f"An error occurred while calling o950.collectToPython.\n: {reason}\n\tat a.b(C.java:1)"
    error = unwrap_cause(RuntimeError(text))
    assert isinstance(error, errors.NotReady) and error.found == reason


def test_a_refused_connection_of_a_task_is_none_of_these() -> None:
    error = RuntimeError(
        "Job aborted: java.net.ConnectException: Call to nn:8020 failed: Connection refused"
    )
    assert unwrap_cause(error) is error


@pytest.mark.parametrize(
    ("text", "code", "where"),
    [
        (
            "Application application_1_0002 failed 1 times due to AM Container\n"
            "ERROR ApplicationMaster: Failed to connect to driver at 10.0.0.1:4040, retrying ...",
            78,
            "10.0.0.1:4040",
        ),
        ("X: Application application_1_0002 failed 1 times due to Y", 75, "application_1_0002"),
        (
            "calling JavaSparkContext.\n: org.apache.spark.SparkException: Uncaught exception: awaitResult:\n"
            "Caused by: java.io.IOException: Failed to connect to /127.0.0.9:38347\n",
            78,
            "127.0.0.9:38347",
        ),
        (
            "X: Max number of executor failures\n\tat x.YarnClientSchedulerBackend.waitForApplication(Y)",
            75,
            None,
        ),
        ("IllegalStateException: Cannot call methods on a stopped SparkContext.", 75, None),
        ("The YARN application has already ended! It might have been killed", 75, None),
        (
            "java.util.ConcurrentModificationException\n\tat java.util.ArrayList$ArrayListSpliterator",
            75,
            None,
        ),
        (f"{JAVA}java.lang.ClassNotFoundException: com.example.NoSerializer\n", 78, None),
        (f"{JAVA}SparkIllegalArgumentException: [INVALID_CONF_VALUE.TYPE_MISMATCH]\n", 78, None),
        (f"{JAVA}java.net.UnknownHostException: no-such-host.invalid\n", 78, None),
        (f"{JAVA}java.net.BindException: Address already in use\n", 75, None),
    ],
)
def test_a_session_that_yarn_did_not_start_is_reported_with_what_to_change(
    text: str, code: int, where: str | None
) -> None:
    error = why_not_started(text)
    assert error is not None and (error.exit_code, error.where) == (code, where)
    assert why_not_started("java.lang.OutOfMemoryError") is None


def test_a_session_by_import_has_the_late_compiler_and_what_counting_needs(spark: Any) -> None:
    conf = dict(spark.sparkContext.getConf().getAll())
    assert conf["spark.driver.defaultJavaOptions"] == LATE_COMPILER
    assert NEEDED.items() <= conf.items()


@pytest.mark.parametrize("failures", [1, 2])
def test_a_race_of_sparks_own_start_is_tried_once_more(
    failures: int, spark: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The race is Spark's: it cannot be had at will."""
    starts: list[None] = []

    def start(builder: Any) -> Any:
        starts.append(None)
        if len(starts) <= failures:
            raise RuntimeError(
                "java.util.ConcurrentModificationException\n\tat java.util.ArrayList"
            )
        return spark

    monkeypatch.setattr(type(spark), "getActiveSession", lambda: None)
    monkeypatch.setattr(type(spark).Builder, "getOrCreate", start)
    if failures == 1:
        assert session("job") is spark
    else:
        with pytest.raises(errors.NotReady):
            session("job")
    assert len(starts) == 2 and "starts once more" in capsys.readouterr().err
