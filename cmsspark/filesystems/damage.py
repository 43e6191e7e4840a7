"""Damage that clients of HDFS report, told apart from a node that is only away."""

from __future__ import annotations

import re
import shlex
from typing import Final
from urllib.parse import urlsplit

from cmsspark.base.errors import DataError

#: How clients of HDFS, Java's and the native one, tell of blocks that cannot be read.
_DAMAGED: Final = re.compile(
    r"ChecksumException|[Cc]hecksum ?[Ee]rror|checksums didn't match|BlockMissingException"
    r"|Could not obtain block|BlocksNotFound|blocks not found for|All DataNodes failed"
)
#: With these words a node may only be away.
_AWAY: Final = re.compile(
    r"[Cc]onnection refused|ConnectException|NoRouteToHost|[Tt]imed out|Failed to connect"
    r"|SocketTimeout|[Cc]onnection reset|UnknownHost"
)
_BLOCKS_OF: Final = re.compile(
    r"(?:file=|ChecksumException: (?:Checksum error: )?|blocks not found for )"
    r"(?:\w+://[^/\s]*)?(/[^\s,;\"]+?)(?= at \d|:\d+|[\s,;\"]|$)"
)


def hdfs_damage(text: str, location: str = "") -> DataError | None:
    """Return the error (65) for a file whose blocks are damaged, or that no DataNode
    has; None where a node only did not answer, and for other texts. ``location``: the
    file, where it is known.

    Example:
        >>> hdfs_damage("Could not obtain block: BP-1:blk_2 file=/cms/x No live nodes").where
        '/cms/x'
    """
    if _DAMAGED.search(text) is None or _AWAY.search(text) is not None:
        return None
    named = _BLOCKS_OF.search(text)
    path = urlsplit(location).path if location else named[1] if named else ""
    return DataError(
        "a block of a file on HDFS is damaged, or no DataNode has it",
        where=location or path or None,
        found=" ".join(text.split())[:200],
        next_step=f"hdfs fsck {shlex.quote(path) if path else 'PATH'} -files -blocks -locations "
        "shows its blocks; then fetch the file again from its source",
    )
