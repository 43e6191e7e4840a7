"""What Hadoop's S3 client says when a bucket cannot be read, and what to do about it."""

from __future__ import annotations

from typing import Final
from urllib.parse import urlsplit

from cmsspark.base.errors import CmssparkError, InputMissing, NotAllowed, NotReady, SettingsError

_SCHEMES: Final = ("s3", "s3n", "s3a")
#: The client belongs to one version of Hadoop: that of Spark's jars.
_JARS: Final = (
    "have Hadoop's S3 client, of the version of Spark's hadoop-client-api jar: in the settings "
    "`spark: {spark.jars.packages: org.apache.hadoop:hadoop-aws:VERSION}`, or its jars by `spark.jars`"
)
_KEYS: Final = (
    "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or name a credential provider in the settings: "
    "`spark: {spark.hadoop.hadoop.security.credential.provider.path: …}`"
)
_ENDPOINT: Final = (
    "check spark.hadoop.fs.s3a.endpoint in the settings, and that its server runs; then the same command again"
)
#: Parts of messages of a server that is not there.
_AWAY: Final = ("Unable to execute HTTP request", "Connection refused", "UnknownHostException", "connect timed out")


class BucketMissing(InputMissing):
    """There is no bucket of that name: what is missing is more than one file."""


def convert_error(path: str, name: str, reason: str) -> CmssparkError | None:
    """Return the error for an exception at a location in S3: of its class ``name``, with the first line of its message.

    SettingsError (78) without the client, NotAllowed (77) without or with wrong credentials, BucketMissing (66) for a
    bucket that is not there, NotReady (75) where no server answers; None for all others, and for other locations.
    """
    parts = urlsplit(path)
    if parts.scheme not in _SCHEMES:
        return None
    text = f"{name}: {reason}"
    if parts.scheme != "s3a" and name.endswith("UnsupportedFileSystemException"):
        return SettingsError(
            f"Hadoop has no file system {parts.scheme}:", where=path, next_step=f"write s3a:{path.partition(':')[2]}"
        )
    if "ClassNotFoundException" in text or "NoClassDefFoundError" in text:
        return SettingsError("the client of S3 is not among Spark's jars", where=path, found=reason, next_step=_JARS)
    if "NoAuthWithAWS" in text or "NoAwsCredentials" in text or "No AWS Credentials" in text:
        return NotAllowed("no credentials for S3", where=path, found="none", next_step=_KEYS)
    if "AccessDenied" in text or "InvalidAccessKeyId" in text or "SignatureDoesNotMatch" in text:
        return NotAllowed(
            "S3 refuses these credentials, or this bucket to them", where=path, found=reason, next_step=_KEYS
        )
    if "UnknownStoreException" in text or "NoSuchBucket" in text:
        return BucketMissing(
            "the address names no bucket",
            where=path,
            found=f"no bucket {parts.netloc}",
            next_step="check its name, and " + _ENDPOINT,
        )
    if any(part in text for part in _AWAY):
        return NotReady("the server of S3 does not answer", where=path, found=reason, next_step=_ENDPOINT)
    return None
