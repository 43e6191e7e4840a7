"""How ``datasets.csv.gz`` was made: ``python -m tools.demo_datasets
OPEN_DATA.csv ACCESSES.csv OUT.csv.gz``.

From two public tables: names, events, files and bytes of datasets in the CERN Open Data
records of CMS, and daily accesses of datasets in 2015. One row for each dataset; a cell
that its source does not have is empty. USER datasets are left out: their names carry
the account of the person who made them.
"""

from __future__ import annotations

import csv
import gzip
import io
import sys
from collections import Counter
from pathlib import Path

COLUMNS = ("dataset", "events", "files", "bytes", "accesses")


def compress(open_data: Path, accesses: Path) -> bytes:
    """Return the table as gzip bytes: ``dataset, events, files, bytes`` as recorded and
    the sum of ``accesses``.
    """
    rows: dict[str, list[str]] = {}
    with open_data.open(encoding="utf-8", newline="") as stream:
        for row in csv.DictReader(stream):
            rows[row["dataset"]] = [row["events"], row["files"], row["bytes"], ""]
    totals: Counter[str] = Counter()
    with accesses.open(encoding="utf-8", newline="") as stream:
        for row in csv.DictReader(stream):
            totals[row["dataset"]] += int(row["accesses"])
    for name, total in totals.items():
        rows.setdefault(name, ["", "", "", ""])[3] = str(total)
    for name in [name for name in rows if name.endswith("/USER")]:
        del rows[name]
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(COLUMNS)
    writer.writerows([name, *rows[name]] for name in sorted(rows))
    return gzip.compress(text.getvalue().encode(), 9, mtime=0)


if __name__ == "__main__":
    Path(sys.argv[3]).write_bytes(compress(Path(sys.argv[1]), Path(sys.argv[2])))
