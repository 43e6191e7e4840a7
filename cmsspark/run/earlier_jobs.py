"""The jobs of the day before: which jobs of a day are repeated (rule 31).

The ids of a day's jobs are stored with its result. They serve the next day where they
were made from the files that its folder has now. Otherwise the logs of the day before
are read for their ids. Without that folder they cannot be recognised.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import date, timedelta
from typing import TYPE_CHECKING, Any, Final

import msgspec

from cmsspark.base.errors import CmssparkError, DataError, InputMissing, NotReady
from cmsspark.base.schemas import stored_table
from cmsspark.filesystems.storage import Files, is_local
from cmsspark.run.provenance import input_summary
from cmsspark.sources.folders import DayInput, Layout, resolve_day
from cmsspark.sources.registry import JOB_IDS, find_stream
from cmsspark.store import results
from cmsspark.store.results import CurrentTable

if TYPE_CHECKING:
    from cmsspark.base.arrays import Longs


#: Stored ids that the driver reads and sends to each task, at most.
SENT_IDS: Final = 1_000_000


class EarlierDay(msgspec.Struct, frozen=True):
    """The day before of a stream of jobs. ``source``: its files, None without a folder.
    ``ids``: the stored ids.
    """

    stream: str
    day: date
    source: DayInput | None = None
    ids: CurrentTable | None = None
    #: Why there is no ``source``.
    missing: str = ""
    #: The table of the stored ids.
    table: str = JOB_IDS

    @property
    def to_read(self) -> DayInput | None:
        """The files whose ids are not stored."""
        return self.source if self.ids is None else None

    @property
    def warnings(self) -> list[str]:
        """A warning where no job can be recognised as repeated."""
        if self.source is not None:
            return []
        return [
            f"{self.stream}: jobs that were also logged on {self.day} may count twice: {self.missing}"
        ]

    def as_dict(self) -> dict[str, Any]:
        """Return the entry of the manifest: the day, its folder (null: none is there)
        with the sums of its files, and where its ids come from.
        """
        entry: dict[str, Any] = {"day": self.day.isoformat(), "folder": None}
        if self.source is not None:
            entry |= {"folder": self.source.folder, **self.source.file_sums()}
        if self.ids is not None:
            return {
                **entry,
                "ids_from": "stored",
                "job": self.ids.manifest.job,
                "run": self.ids.manifest.run,
            }
        return {**entry, "ids_from": None if self.source is None else "logs"}

    def id_paths(self, files: Files) -> list[str]:
        """Return the part files of the stored ids for tasks of a cluster to read, if they
        are many and lie where these can open them; else nothing.

        Raises DataError (65) where they are damaged.
        """
        if self.ids is None or self.ids.manifest.tables[self.table].rows <= SENT_IDS:
            return []
        from cmsspark.store.part_files import count_part_rows, stored_parts

        parts = stored_parts(files, self.ids, self.table)
        if any(is_local(part.path) for part in parts):
            return []
        schema = stored_table(self.table)
        self._check_count(sum(count_part_rows(files, part, schema) for part in parts))
        return [part.path for part in parts]

    def _check_count(self, count: int) -> None:
        assert self.ids is not None
        if count != self.ids.manifest.tables[self.table].rows:
            raise DataError(
                f"the ids of the jobs of {self.day} are not all there",
                where=self.ids.path,
                next_step=f"run {self.ids.manifest.job} again for {self.day}",
            )

    def read_ids(self, files: Files) -> Longs:
        """Return the stored ids, ascending; none where they are not stored.

        Raises DataError (65) if they are damaged.
        """
        import numpy as np

        from cmsspark.base import buffers
        from cmsspark.store.part_files import stored_parts
        from cmsspark.store.stored_columns import part_rows

        ids = [np.zeros(0, np.int64)]
        if self.ids is not None:
            schema = stored_table(self.table)
            rows = [
                part_rows(files, part, schema, ["id_hash"])
                for part in stored_parts(files, self.ids, self.table)
            ]
            ids += [buffers.to_numpy(part.column("id_hash"), np.int64) for part in rows]
            self._check_count(sum(map(len, ids)))
        return np.unique(np.concatenate(ids))


def find_earlier(
    files: Files,
    layout: Layout,
    fout: str,
    stream: str,
    day: date,
    jobs: Sequence[str] = (),
    table: str = JOB_IDS,
) -> EarlierDay:
    """Find the day before ``day``. ``jobs``: those that store the ids of ``stream``, by
    default the jobs on streams, in ``table``. Raises NotReady (75) if its folder is
    being copied.
    """
    before = day - timedelta(days=1)
    storing = jobs or ("data_aggregation", find_stream(stream).report)
    try:
        # On the first day of the stream's epoch another source has counted the jobs
        # that ended on the day before.
        source = resolve_day(files, layout, stream, before, allow_tmp=True, any_epoch=True)
    except InputMissing as error:
        return EarlierDay(stream, before, missing=f"there is no folder ({error.where})")
    except NotReady as error:
        # A file that is still being copied, or a folder without data.
        entry = files.stat(str(error.where)) if error.where else None
        if not (entry is not None and entry.is_dir):
            raise
        return EarlierDay(stream, before, missing=f"its folder has no data ({error.where})")
    return EarlierDay(
        stream,
        before,
        source,
        _stored_ids(files, fout, storing, table, source, before),
        table=table,
    )


def _stored_ids(
    files: Files, fout: str, jobs: Sequence[str], table: str, source: DayInput, day: date
) -> CurrentTable | None:
    """Find the ids that were stored from the same files, by the same rules; None if
    there are none.
    """
    for job in jobs:
        try:
            current = results.current(files, fout, job, table, day) if fout else None
        except CmssparkError:
            continue
        if current is None or current.manifest.has_earlier_rules:
            continue
        is_same = any(
            entry == input_summary(source) for entry in current.manifest.document.get("inputs", ())
        )
        if is_same and current.manifest.tables[table].schema == stored_table(table).fingerprint():
            return current
    return None
