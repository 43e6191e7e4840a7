"""Rule 1 and 3 over whole text files: where lines end, what is no record, what stands
at a file's start and end.
"""

from __future__ import annotations

import gzip

from tests.corpus.cases import FileCase
from tests.corpus.json_lines import aaa, cmssw, g3

BOM = b"\xef\xbb\xbf"


def cases() -> list[FileCase]:
    """The cases of every JSON stream."""
    return [
        case
        for stream, build in (("aaa", aaa), ("cmssw", cmssw), ("eos", g3))
        for case in _cases(stream, build())
    ]


def _cases(stream: str, good: bytes) -> list[FileCase]:
    half = len(good) // 2
    inside = good.replace(b",", b",\n", 1)  # one record over two lines
    long = b'{"more":"' + b"x" * 10_000_000 + b'",' + good[1:]
    contents: list[tuple[int, str, bytes, int, int]] = [
        # rule, name, content, matched, malformed
        (1, "one line", good + b"\n", 1, 0),
        (1, "no newline at the end", good + b"\n" + good, 2, 0),
        (1, "CRLF", good + b"\r\n" + good + b"\r\n", 2, 0),
        (1, "CRLF and LF mixed", good + b"\r\n" + good + b"\n" + good, 3, 0),
        (1, "two carriage returns: the second is JSON's white space", good + b"\r\r\n", 1, 0),
        (1, "carriage returns alone end no line", good + b"\r" + good + b"\n", 0, 1),
        (
            1,
            "a carriage return within a record is white space",
            good.replace(b",", b",\r", 1) + b"\n",
            1,
            0,
        ),
        (1, "a vertical tab ends no line", good + b"\v" + good + b"\n", 0, 1),
        (1, "a form feed ends no line", good + b"\f\n", 0, 1),
        (1, "a next-line character ends no line", good + b"\xc2\x85" + good + b"\n", 0, 1),
        (1, "blank lines", b"\n\n" + good + b"\n\n \t \n\t\n" + good + b"\n\n", 2, 0),
        (1, "blank lines with CRLF", b"\r\n" + good + b"\r\n \t\r\n", 1, 0),
        (1, "a line of two carriage returns is a record", good + b"\n\r\r\n", 1, 1),
        (1, "a carriage return at the file's end goes too", good + b"\n\r", 1, 0),
        (1, "a line with a no-break space is a record", b"\xc2\xa0\n" + good + b"\n", 1, 1),
        (1, "a byte order mark", BOM + good + b"\n" + good + b"\n", 2, 0),
        (1, "a byte order mark and nothing", BOM, 0, 0),
        (1, "a byte order mark before a blank line", BOM + b"\n" + good, 1, 0),
        (1, "a byte order mark before CRLF", BOM + b"\r\n" + good, 1, 0),
        (1, "two byte order marks", BOM + BOM + good + b"\n" + good, 1, 1),
        (1, "a byte order mark on the second line", good + b"\n" + BOM + good + b"\n", 1, 1),
        (1, "half a byte order mark", BOM[:2] + good + b"\n" + good, 1, 1),
        (1, "empty", b"", 0, 0),
        (1, "only newlines", b"\n\n\n", 0, 0),
        (1, "only blanks", b"  \t ", 0, 0),
        (1, "half a last line", good + b"\n" + good[:half], 1, 1),
        (1, "a last line that is cut before its last byte", good + b"\n" + good[:-1], 1, 1),
        (1, "one record over two lines", inside + b"\n" + good, 1, 2),
        (
            1,
            "two objects in a line and a record over two lines: as many objects as lines",
            good + good + b"\n" + inside + b"\n",
            0,
            3,
        ),
        (
            1,
            "two objects in a line and a blank line: as many objects as lines",
            good + good + b"\n\n" + good + b"\n",
            1,
            1,
        ),
        (1, "a newline in a string", good.replace(b"alice", b"al\nice", 1) + b"\n" + good, 1, 2),
        (1, "a NUL behind a record", good + b"\0\n" + good + b"\n", 1, 1),
        (1, "lines of NULs, as after a crash", good + b"\n" + b"\0" * 4096, 1, 1),
        (
            1,
            "brackets that close and open across lines",
            b'{"a":[\n' + good + b"\n]}\n" + good,
            2,
            2,
        ),
        (
            1,
            "objects side by side, with newlines that balance",
            good + b" " + good + b"\n}\n{\n",
            0,
            3,
        ),
        (
            1,
            "an array over all lines, as JSON files have it",
            b"[\n" + good + b",\n" + good + b"\n]\n",
            1,
            3,
        ),
        (1, "words that are JSON and no objects", b'null\ntrue\n5\n"x"\n[]\n{}\n' + good, 1, 6),
        (
            1,
            "broken lines between good ones",
            (good + b"\n" + good[:half] + b"\n") * 3 + good,
            4,
            3,
        ),
        (1, "a line of 10 MB", good + b"\n" + long + b"\n" + good, 3, 0),
        (1, "a broken line of 10 MB", good + b"\n" + long[:-1] + b"\n" + good, 2, 1),
        (3, "the same record three times", (good + b"\n") * 3, 3, 0),
        (1, "gzip", gzip.compress(good + b"\n" + good + b"\n", mtime=0), 2, 0),
        (1, "gzip of nothing", gzip.compress(b"", mtime=0), 0, 0),
        (
            1,
            "gzip in two members, cut within a line",
            gzip.compress(good[:half], mtime=0) + gzip.compress(good[half:] + b"\n", mtime=0),
            1,
            0,
        ),
        (1, "gzip with a byte order mark", gzip.compress(BOM + good, mtime=0), 1, 0),
    ]
    return [
        FileCase(rule, name, stream, content, {"matched": matched, "malformed": malformed})
        for rule, name, content, matched, malformed in contents
    ]
