"""Files of HDFS opened by Python: the ranges of a file hold each line once, and errors
keep their codes.
"""

from __future__ import annotations

import gzip
import io
import socket
from collections.abc import Iterator
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cmsspark.base.errors import (
    CmssparkError,
    DataError,
    InputMissing,
    NotAllowed,
    NotReady,
    SettingsError,
)
from cmsspark.filesystems import hdfs
from cmsspark.filesystems.hdfs import (
    HdfsClient,
    LineRange,
    RangeStream,
    hdfs_errors,
    open_range,
    open_whole,
)
from cmsspark.filesystems.storage import RangeFile
from tests.ports import free_ports


@dataclass
class Stored:
    """A file as HDFS would send it: in chunks of some bytes."""

    content: bytes
    chunk: int = 3

    def __len__(self) -> int:
        return len(self.content)

    def read_range(self, offset: int, count: int) -> bytes:
        assert offset + count <= len(self.content)
        return self.content[offset : offset + count]

    def read_range_stream(self, offset: int, count: int) -> Iterator[bytes]:
        assert offset + count <= len(self.content)
        for at in range(offset, offset + count, self.chunk):
            yield self.content[at : min(at + self.chunk, offset + count)]


@dataclass
class OneFile:
    file: Stored

    def open(self, location: str) -> Stored:
        return self.file


def pieces(content: bytes, cuts: list[int], chunk: int) -> list[bytes]:
    """What each of the ranges between the cuts reads, without the BOM before those that
    are not the first.
    """
    starts = [0, *cuts]
    ranges = [
        LineRange("hdfs://n/f", start, end)
        for start, end in zip(starts, [*cuts, None], strict=True)
    ]
    read = [open_range(OneFile(Stored(content, chunk)), one).read() for one in ranges]
    return [read[0], *(piece.removeprefix(b"\xef\xbb\xbf") for piece in read[1:])]


@given(
    st.lists(st.sampled_from([b"", b"a", b"bc", b"\r", b"0123456789"]), max_size=12).map(
        b"\n".join
    ),
    st.lists(st.integers(min_value=1, max_value=60), max_size=5, unique=True).map(sorted),
    st.integers(min_value=1, max_value=30),
)
def test_the_ranges_of_a_file_hold_each_of_its_lines_once_and_whole(
    content: bytes, cuts: list[int], chunk: int
) -> None:
    read = pieces(content, cuts, chunk)
    # Together they are the file, byte for byte, and each but the last ends where a line ends.
    assert b"".join(read) == content
    rest = content
    for piece in read:
        rest = rest[len(piece) :]
        assert not piece or not rest or piece.endswith(b"\n")


@pytest.mark.parametrize(
    ("cut", "first"), [(1, b"ab\n"), (2, b"ab\n"), (3, b"ab\n"), (4, b"ab\ncd\n")]
)
def test_a_line_belongs_to_the_range_in_which_it_begins(cut: int, first: bytes) -> None:
    assert pieces(b"ab\ncd\nef", [cut], chunk=2) == [first, b"ab\ncd\nef".removeprefix(first)]


def test_a_range_reads_no_further_than_its_last_line() -> None:
    stored = Stored(b"x" * 10 + b"\n" + b"y" * 1_000, chunk=4)
    asked = []

    def counting(
        offset: int, count: int, plain: Any = stored.read_range_stream
    ) -> Iterator[bytes]:
        for chunk in plain(offset, count):
            asked.append(chunk)
            yield chunk

    stored.read_range_stream = counting  # type: ignore[method-assign]
    assert open_range(OneFile(stored), LineRange("f", 0, 5)).read() == b"x" * 10 + b"\n"
    assert len(asked) == 3


def test_a_packed_file_without_the_name_of_one_is_in_its_first_range() -> None:
    packed = gzip.compress(b"a\n" * 1_000)
    read = pieces(packed, [10, 20], chunk=7)
    assert read == [packed, b"", b""]


def test_a_range_behind_the_end_of_a_file_that_became_shorter_is_empty() -> None:
    assert pieces(b"ab\n", [3, 40], chunk=2) == [b"ab\n", b"", b""]


def test_a_stream_fills_what_it_is_given_and_goes_back_to_its_start_once() -> None:
    stream = RangeStream("f", iter([b"", b"abc", b"de", b"", b"f"]))
    head = bytearray(2)
    assert stream.readinto(head) == 2 and head == b"ab"
    assert stream.seek(0) == 0
    room = bytearray(5)
    assert stream.readinto(room) == 5 and room == b"abcde"
    with pytest.raises(io.UnsupportedOperation):
        stream.seek(0)
    assert stream.read() == b"f" and stream.read() == b""


@pytest.mark.parametrize("chunk", [1, 4])
@pytest.mark.parametrize("start", [0, 3])
def test_a_range_can_go_back_once_its_packing_is_told_however_short_its_first_chunk_is(
    start: int, chunk: int
) -> None:
    content = b"ab\n" + b"cd\n" * 10
    with open_range(OneFile(Stored(content, chunk)), LineRange("f", start)) as stream:
        head = stream.read(10)
        stream.seek(0)
        read = stream.read()
    assert read.startswith(head) and read.endswith(content[start:])


#: What the client raises, as it was seen on a real HDFS, and what becomes of it.
ERRORS = [
    (FileNotFoundError("File does not exist: /x\n\tat org.apache.hadoop"), InputMissing),
    (
        RuntimeError(
            'RPCError("org.apache.hadoop.security.AccessControlException", "Permission denied: user=a\\n\\tat'
        ),
        NotAllowed,
    ),
    (RuntimeError('InvalidArgument("No NameNode hosts found")'), SettingsError),
    (RuntimeError("ChecksumError"), DataError),
    (RuntimeError('BlocksNotFound("/x")'), DataError),
    (RuntimeError("All DataNodes failed: checksums didn't match"), DataError),
    (RuntimeError("All DataNodes failed: Failed to connect to DataNode 10.0.0.1"), NotReady),
    (OSError("Connection refused (os error 111)"), NotReady),
    (RuntimeError('DataTransferError("all replicas failed")'), NotReady),
]


def test_a_datanode_that_takes_no_connection_is_no_damaged_block() -> None:
    def failed(port: int) -> RuntimeError:
        node = f'{{ id: DatanodeIdProto {{ ip_addr: \\"127.0.0.1\\", host_name: \\"h\\", xfer_port: {port}, '
        return RuntimeError(f'DataTransferError("All DataNodes failed: [DatanodeInfoProto {node}')

    (port,) = free_ports(1)
    with pytest.raises(NotReady), hdfs_errors("hdfs://n/x"):
        raise failed(port)
    with (
        socket.create_server(("127.0.0.1", 0)) as server,
        pytest.raises(DataError),
        hdfs_errors("hdfs://n/x"),
    ):
        raise failed(server.getsockname()[1])


@pytest.mark.parametrize(("error", "kind"), ERRORS)
def test_an_error_of_the_client_has_the_code_of_ours_and_no_java_trace(
    error: Exception, kind: type[CmssparkError]
) -> None:
    def failing() -> Iterator[bytes]:
        yield b"a"
        raise error

    with pytest.raises(kind) as raised:
        RangeStream("hdfs://n/x", failing()).read()
    assert raised.value.where == "hdfs://n/x"
    assert (
        raised.value.found
        and "\tat" not in raised.value.found
        and "\\tat" not in raised.value.found
    )


@pytest.mark.parametrize(
    "text",
    [
        'GSSAPIError(GssMajorCodes { routine_error: "GSS_S_NO_CRED" }, 25, "No credentials were supplied, or the',
        'RPCError("org.apache.hadoop.security.token.SecretManager$InvalidToken", "token (token for a) is expired")',
    ],
)
def test_a_missing_ticket_or_an_old_token_is_77(text: str) -> None:
    with pytest.raises(NotAllowed, match="Kerberos ticket"), hdfs_errors("hdfs://n/x"):
        raise RuntimeError(text)


def test_an_executor_without_the_client_is_told_what_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(__import__("sys").modules, "hdfs_native", None)
    hdfs._connected.cache_clear()
    with pytest.raises(SettingsError) as raised:
        HdfsClient(()).open("hdfs://n:1/x")
    assert "cmsspark[hdfs]" in str(raised.value.next_step) and hdfs.CLIENT_KEY in str(
        raised.value.next_step
    )


def test_a_namenode_that_is_away_is_asked_for_a_quarter_of_a_minute_unless_the_site_says_more(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    taken: list[dict[str, str]] = []
    client = SimpleNamespace(Client=lambda server, options: taken.append(options))
    monkeypatch.setitem(__import__("sys").modules, "hdfs_native", client)
    hdfs._connected.cache_clear()
    name = "dfs.client.failover.max.attempts"
    for options in ((), ((name, "9"), ("dfs.nameservices", "cms"))):
        hdfs._connected("n:1", options)
    hdfs._connected.cache_clear()
    assert taken == [{name: "4"}, {name: "9", "dfs.nameservices": "cms"}]


def test_no_answer_is_no_damage() -> None:
    with pytest.raises(NotReady), hdfs_errors("hdfs://n/x"):
        raise OSError("Connection reset by peer")


@given(
    st.binary(max_size=200),
    st.lists(st.tuples(st.integers(0, 250), st.integers(0, 250)), max_size=10),
    st.integers(min_value=1, max_value=30),
)
def test_a_file_is_read_at_any_place(
    content: bytes, reads: list[tuple[int, int]], read_ahead: int
) -> None:
    opened = io.BufferedReader(RangeFile(len(content), Stored(content).read_range), read_ahead)
    for place, count in reads:
        assert opened.seek(place) == place
        assert opened.read(count) == content[place : place + count]
    assert opened.seek(0, io.SEEK_END) == len(content) and opened.read() == b""


def test_an_error_while_a_file_is_read_keeps_its_code() -> None:
    class Gone(Stored):
        def read_range(self, offset: int, count: int) -> bytes:
            raise RuntimeError("No available DataNode")

    with (
        open_whole(OneFile(Gone(b"abc")), "hdfs://n/f") as opened,
        pytest.raises(NotReady) as caught,
    ):
        opened.read(1)
    assert caught.value.where == "hdfs://n/f"
