"""Old generations of a day's spool: what is confirmed of them goes into one, and they are removed.

The spool is the memory of what a destination was given, so nothing is just deleted: the last form of each document is
written to a generation of its own, which counts as confirmed from the moment it is there. Where anything is not
confirmed, all stays.
"""

from __future__ import annotations

import json
import shutil
from typing import Final

from cmsspark import clock
from cmsspark.errors import DataError
from cmsspark.publish.changes import Changes
from cmsspark.publish.ledger import OPEN, Batch, Ledger, State
from cmsspark.publish.spool import Spool, SpoolWriter

#: The mark of a generation that was confirmed whole.
CONFIRMED: Final = "confirmed.json"
#: The key of a manifest that says that the generation stands for all before it.
REPLACES: Final = "replaces_older"
#: Generations of a day that are kept one by one.
KEPT: Final = 5


def prune(spool: Spool, ledger: Ledger, kept: int = KEPT) -> bool:
    """Replace the generations of a day by one where there are more than ``kept``. True when it did.

    Does nothing while any document is not confirmed, or was refused, or may have arrived in another form.
    """
    found = spool.generations()
    if len(found) <= kept or ledger.first((*OPEN, State.QUARANTINED)) is not None:
        return False
    if spool.manifest(found[-1]).get("quarantined"):
        return False  # somebody has yet to look at these rows
    generation = max([*found, *ledger.generations()]) + 1
    writer = SpoolWriter(spool.day_folder, generation)
    try:
        if not _write(writer, spool, ledger):
            writer.abandon()
            return False
    except BaseException:
        writer.abandon()
        raise
    replaced_by(spool, ledger)
    return True


def _write(writer: SpoolWriter, spool: Spool, ledger: Ledger) -> bool:
    newest = spool.manifest(spool.generations()[-1])
    scratch = writer.folder / "changes.sqlite"
    changes = Changes(scratch, newest.get("completeness_id", ""))
    try:
        changes.load(ledger, spool)
        if not changes.knows_all():
            return False
        for former in changes.sent():
            writer.add(spool.piece(former.generation, former.part, former.offset, former.length))
        if changes.last_word is not None:
            writer.add(changes.last_word)
    finally:
        changes.close()
    scratch.unlink()
    counts = {"documents": sum(part["count"] for part in writer.parts), "unchanged": 0, "gone": 0}
    about = ("table", "period", "source", "store_run", "completeness_id")
    # The mark comes first: whoever finds this generation knows that nothing of it is to be sent.
    (writer.folder / CONFIRMED).write_text(json.dumps({"confirmed_at": clock.iso()}))
    writer.finish({**{key: newest.get(key) for key in about}, "spooled_at": clock.iso(), **counts, REPLACES: True})
    return True


def replaced_by(spool: Spool, ledger: Ledger) -> None:
    """Finish what a pruning began: the newest generation that stands for all before it takes their place."""
    replacing = [found for found in spool.generations() if _replaces(spool, found)]
    if not replacing:
        return
    newest = replacing[-1]
    if newest not in ledger.generations():
        ledger.replace(newest, (_confirmed(batch) for batch in spool.batches(newest)))
    for folder in spool.day_folder.glob("g[0-9]*"):
        if folder.name[1:].isdigit() and int(folder.name[1:]) < newest:
            # Without its manifest a generation is none; should this end half-way, the next one goes on.
            (folder / "manifest.json").unlink(missing_ok=True)
            shutil.rmtree(folder, ignore_errors=True)


def _replaces(spool: Spool, generation: int) -> bool:
    try:
        return bool(spool.manifest(generation).get(REPLACES))
    except DataError:
        return False  # told when something of it is wanted


def _confirmed(batch: Batch) -> Batch:
    return Batch(0, batch.generation, batch.part, batch.offset, batch.length, batch.count, batch.sha256, State.ACKED)
