"""Errors of S3: what Hadoop's client says, and what a reader is told to do."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from cmsspark.base.errors import CmssparkError, InputMissing, NotAllowed, NotReady, SettingsError
from cmsspark.engines import session
from cmsspark.filesystems.hadoop import BucketMissing, HadoopFiles, convert_s3_error

STORE = "s3a://popularity/store"


@pytest.mark.parametrize(
    ("name", "reason", "kind", "next_step"),
    [
        (
            "java.lang.RuntimeException",
            "java.lang.ClassNotFoundException: Class org.apache.hadoop.fs.s3a.S3AFileSystem not found",
            SettingsError,
            "hadoop-aws",
        ),
        (
            "java.nio.file.AccessDeniedException",
            "popularity: org.apache.hadoop.fs.s3a.auth.NoAuthWithAWSException: No AWS Credentials provided by "
            "TemporaryAWSCredentialsProvider SimpleAWSCredentialsProvider EnvironmentVariableCredentialsProvider",
            NotAllowed,
            "AWS_ACCESS_KEY_ID",
        ),
        (
            "java.nio.file.AccessDeniedException",
            "getFileStatus on s3a://popularity/store: S3Exception: Forbidden (Status Code: 403)",
            NotAllowed,
            "AWS_ACCESS_KEY_ID",
        ),
        (
            "org.apache.hadoop.fs.s3a.UnknownStoreException",
            "`s3a://popularity/store': getFileStatus on s3a://popularity/store: NoSuchBucketException: (404)",
            BucketMissing,
            "check its name",
        ),
        (
            "org.apache.hadoop.fs.s3a.AWSClientIOException",
            "getFileStatus on s3a://popularity/store: SdkClientException: Unable to execute HTTP request: Connect to "
            "127.0.0.1:9 failed: Connection refused",
            NotReady,
            "fs.s3a.endpoint",
        ),
    ],
)
def test_an_error_names_what_to_do(
    name: str, reason: str, kind: type[CmssparkError], next_step: str
) -> None:
    error = convert_s3_error(STORE, name, reason)
    assert type(error) is kind
    assert (error.where, next_step in str(error.next_step)) == (STORE, True)
    assert convert_s3_error("hdfs://namenode/store", name, reason) is None
    assert convert_s3_error(STORE, "java.io.IOException", "something else") is None


def test_a_bucket_that_is_missing_is_no_missing_file(monkeypatch: pytest.MonkeyPatch) -> None:
    class System:
        """A file system whose client raises, as the conversion of its errors has it."""

        def __init__(self, error: CmssparkError) -> None:
            self.error = error

        def getFileStatus(self, path: object) -> object:
            raise self.error

    files = HadoopFiles.__new__(HadoopFiles)
    monkeypatch.setattr(
        files, "_open", lambda path: (System(InputMissing("no such file", where=path)), path)
    )
    assert files.stat(STORE) is None
    missing = convert_s3_error(
        STORE, "org.apache.hadoop.fs.s3a.UnknownStoreException", "NoSuchBucketException: (404)"
    )
    assert isinstance(missing, InputMissing)
    monkeypatch.setattr(files, "_open", lambda path: (System(missing), path))
    with pytest.raises(BucketMissing, match="the address names no bucket"):
        files.stat(STORE)


def test_the_scheme_s3_is_written_s3a() -> None:
    name = "org.apache.hadoop.fs.UnsupportedFileSystemException"
    error = convert_s3_error("s3://popularity/store", name, 'No FileSystem for scheme "s3"')
    assert error is not None and "s3a://popularity/store" in str(error.next_step)


def test_spark_without_the_client_of_s3_says_what_to_install(spark: object) -> None:
    with pytest.raises(SettingsError, match=r"client of S3") as caught:
        HadoopFiles(spark).stat(STORE)  # type: ignore[arg-type]
    assert "spark.jars.packages" in str(caught.value.next_step)


def test_a_session_that_looks_at_files_takes_the_jars_of_their_client(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from cmsspark.settings.settings import load_settings

    made: dict[str, str] = {}
    monkeypatch.delenv("PYSPARK_GATEWAY_PORT", raising=False)
    monkeypatch.setattr(session, "has_session", lambda: True)
    monkeypatch.setattr(session, "session", lambda _app, **options: made.update(options))
    wanted = {
        "spark.jars.packages": "org.apache.hadoop:hadoop-aws:3.5.0",
        "spark.hadoop.fs.s3a.endpoint": "http://127.0.0.1:9",
        "spark.hadoop.fs.s3a.retry.limit": "1",
    }
    settings = replace(
        load_settings(environ={"HOME": "/nowhere"}),
        spark={**wanted, "spark.executor.memory": "8g"},
    )
    session.small_session("test", settings)
    assert made.items() >= wanted.items()
    assert made["spark.hadoop.fs.s3a.attempts.maximum"] == "2"
    assert "spark.executor.memory" not in made
