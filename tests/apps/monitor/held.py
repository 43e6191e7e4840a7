"""Holds so many MB until a sample that was begun after that is in the database:
``held.py DATABASE MB [WORDS …]``.
"""

import os
import sqlite3
import sys
import time

_PATIENCE_S = 300.0
_QUERY = "SELECT 1 FROM ProcessMonitor WHERE pid = ? AND time_ms > ? LIMIT 1"


def main(file: str, megabytes: int) -> None:
    database = sqlite3.connect(f"file:{file}?mode=ro", uri=True, timeout=_PATIENCE_S)
    kept = bytearray(b"x") * (megabytes * 1_000_000)
    now_ms, end = time.time_ns() // 1_000_000, time.monotonic() + _PATIENCE_S
    while database.execute(_QUERY, (os.getpid(), now_ms)).fetchone() is None:
        if time.monotonic() > end:
            sys.exit(f"held.py: no sample of {len(kept)} bytes in {_PATIENCE_S:.0f} s")
        time.sleep(0.05)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
