"""Rows, outboxes and clocks that the publishing tests share."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Sequence
from datetime import date
from pathlib import Path
from typing import Any

from cmsspark.base.schemas import stored_table
from cmsspark.publish.batch_log import Batch
from cmsspark.publish.documents import DocumentSpec
from cmsspark.publish.outbox import Outbox, SpoolResult

DAY = date(2026, 1, 15)
TIMESTAMP = 1_768_435_200_000
SPEC = DocumentSpec(stored_table("data_aggregation"), DAY, "cms-test", "data_aggregation")
MANIFEST = {
    "run": "r1",
    "reconciliation": {
        "aaa": {
            "read": 12,
            "matched": 10,
            "malformed": 0,
            "out_of_day": 1,
            "write_only": 1,
            "unmatched": {"no_lfn": 0, "user_file": 0, "temporary": 0, "not_in_dbs": 0},
            "first_examples": ["/store/user/somebody"],
        }
    },
}


def row(number: int, **other: Any) -> dict[str, Any]:
    """A stored row; its dataset is told by ``number``. Columns without a value are null."""
    values = {
        "day": DAY,
        "stream": "aaa",
        "dataset_name": f"/P{number}/Run2026A-v1/MINIAOD",
        "site_name": "T2_CH_CERN",
        "app": "crab",
        "nacc": 3,
        "distinct_users": 2,
        "remote_nacc": None,
        "read_bytes": 1_000,
        "cpu_time": None,
        "wc_time": None,
        "site_tier": "T2",
        "primary_name": f"P{number}",
        "processing_name": "Run2026A-v1",
        "data_tier": "MINIAOD",
        "timestamp": TIMESTAMP,
        **other,
    }
    return {name: values.pop(name, None) for name in SPEC.table.names} | values


def rows(count: int, start: int = 0) -> list[dict[str, Any]]:
    """Rows ``start`` to ``start + count``."""
    return [row(number) for number in range(start, start + count)]


def store_day(store: Path, given: Sequence[dict[str, Any]], run: str = "r1") -> str:
    """``given`` as the current result of data_aggregation, as the store lays it out;
    returns ``--fout``.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    kinds = {
        "date": pa.date32(),
        "string": pa.string(),
        "long": pa.int64(),
        "double": pa.float64(),
    }
    schema = pa.schema([(column.name, kinds[column.type]) for column in SPEC.table.columns])
    folder = store / "data_aggregation" / DAY.isoformat()
    table = folder / "runs" / run / "data_aggregation"
    table.mkdir(parents=True)
    middle = len(given) // 2
    for number, part in enumerate((given[:middle], given[middle:])):
        pq.write_table(
            pa.Table.from_pylist(list(part), schema), table / f"part-{number:05d}.parquet"
        )
    manifest = {
        **MANIFEST,
        "run": run,
        "tables": {"data_aggregation": {"rows": len(given), "format": "parquet"}},
    }
    (table.parent / "manifest.json").write_text(json.dumps(manifest))
    (folder / "CURRENT").write_text(json.dumps({"run": run}))
    return str(store)


def outbox_in(folder: Path) -> Outbox:
    """The outbox of the tests' table and day."""
    return Outbox(folder, "somewhere", "data_aggregation", DAY.isoformat())


def fill(
    outbox: Outbox, given: Sequence[dict[str, Any]], source: str = "r1", **more: Any
) -> SpoolResult:
    """Spool ``given`` as the whole day."""
    return outbox.fill(SPEC, given, {**MANIFEST, "run": source}, source=source, **more)


def ids(documents: Sequence[bytes]) -> list[str]:
    """The ids of documents."""
    return [json.loads(document)["metadata"]["_id"] for document in documents]


def check_arrived(arrived: Counter[bytes], expected: set[bytes], doubles: int = 0) -> None:
    """All of ``expected`` arrived, nothing else, and at most so many ``doubles``; else
    says how many, and three.
    """
    double = [body for body, count in arrived.items() for _ in range(count - 1)]
    wrong = {"missing": expected - set(arrived), "not wanted": set(arrived) - expected}
    told = [_some(what, sorted(there)) for what, there in wrong.items() if there]
    if len(double) > doubles:
        told.append(_some(f"double, {doubles:,} allowed", double))
    if told:
        raise AssertionError(f"of {len(expected):,} documents " + "; ".join(told))


def _some(what: str, there: Sequence[bytes]) -> str:
    """How many there are, and three of them."""
    return f"{len(there):,} {what}: {b' '.join(body[:300] for body in there[:3]).decode(errors='replace')}"


class Clock:
    """Time that passes when somebody sleeps."""

    def __init__(self) -> None:
        self.now = 0.0
        self.slept: list[float] = []

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now += seconds


class ListSink:
    """Confirms everything, unless ``script`` has an exception for this send;
    ``arrived`` is what is there.
    """

    where = "a list"

    def __init__(self, *script: BaseException | None) -> None:
        self.script = list(script)
        self.arrived: list[bytes] = []
        self.opened = 0

    def outbox_name(self, state_dir: Path) -> str:
        return "somewhere"

    def open(self) -> None:
        self.opened += 1

    def send(
        self,
        batch: Batch,
        documents: Sequence[bytes],
        meanwhile: Callable[[], None] = lambda: None,
    ) -> None:
        meanwhile()
        trouble = self.script.pop(0) if self.script else None
        if trouble is None or getattr(trouble, "landed", False):
            self.arrived.extend(documents)
        if trouble is not None:
            raise trouble

    def stage(self, batch: Batch, documents: Sequence[bytes]) -> None:
        pass

    def close(self) -> None:
        pass
