"""Parquet files that others wrote, read by a child process: where damaged bytes make a
library panic or abort, or ask for all memory, only the child ends.
"""

from __future__ import annotations

import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, TYPE_CHECKING, Final

from cmsspark.base.errors import DataError

if TYPE_CHECKING:
    import pyarrow as pa

_MAIN: Final = "from cmsspark.base.foreign_parquet import main; main()"
#: The key of the stream's metadata that has the names of all columns of the file.
_COLUMNS: Final = b"columns"


@contextmanager
def open_parquet(
    path: Path, label: str, columns: Sequence[str] = ()
) -> Iterator[tuple[list[str], pa.Schema, Iterator[pa.RecordBatch]]]:
    """Yield the names of all columns of a file, and the schema and batches of those of
    its ``columns`` that it has, by default all.

    Raises DataError (65) that names the file where it is damaged, whatever becomes of
    the library that reads it.
    """
    import pyarrow as pa

    with (
        tempfile.TemporaryFile() as messages,
        subprocess.Popen(
            [sys.executable, "-c", _MAIN, str(path.absolute()), *columns],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=messages,
        ) as child,
    ):

        def batches(stream: pa.RecordBatchReader) -> Iterator[pa.RecordBatch]:
            try:
                yield from stream
            except (pa.ArrowInvalid, OSError):
                raise _unreadable(path, label, child.wait(), messages) from None
            # The end of a child that failed is not the end of the rows.
            if (code := child.wait()) != 0:
                raise _unreadable(path, label, code, messages)

        assert child.stdout is not None
        try:
            try:
                stream = pa.ipc.open_stream(child.stdout)
            except (pa.ArrowInvalid, OSError):
                raise _unreadable(path, label, child.wait(), messages) from None
            names = (stream.schema.metadata or {}).get(_COLUMNS, b"").decode()
            yield names.split("\0"), stream.schema, batches(stream)
        finally:
            child.kill()


def _unreadable(path: Path, label: str, code: int, messages: IO[bytes]) -> DataError:
    messages.seek(0)
    lines = messages.read().decode("utf-8", "replace").split("\n")
    text = next((line.strip() for line in lines if line.strip()), "")[:200]
    ending = f"its reader ended with {signal.Signals(-code).name}" if code < 0 else ""
    return DataError(
        f"the {label} cannot be read",
        where=path,
        found=": ".join(part for part in (ending, text) if part)
        or f"its reader ended with {code}",
        next_step="the file is damaged: write or fetch it again",
    )


def main() -> None:
    """Write a file's rows to stdout as a stream of Arrow; one line on stderr is why not."""
    path, *columns = sys.argv[1:]
    try:
        _copy(path, columns, sys.stdout.buffer)
    except BaseException as error:  # a panic of Rust is no Exception
        text = " ".join(str(error).split()) or type(error).__name__
        sys.stderr.write(f"{text}\n")
        sys.exit(1)


def _copy(path: str, columns: Sequence[str], out: IO[bytes]) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    with pq.ParquetFile(path, page_checksum_verification=True) as file:
        names = file.schema_arrow.names
        chosen = [name for name in names if name in columns] if columns else None
        schema = pa.schema(
            [field for field in file.schema_arrow if chosen is None or field.name in chosen]
        )
        rows = 0
        with pa.ipc.new_stream(out, schema.with_metadata({_COLUMNS: "\0".join(names)})) as stream:
            for batch in file.iter_batches(columns=chosen):
                rows += batch.num_rows
                stream.write_batch(batch)
            # Some flips end a column early without an error.
            if rows != file.metadata.num_rows:
                raise ValueError(f"{rows:,} rows of {file.metadata.num_rows:,} can be read")
