"""The reconciliation report of a stored run: where every record went, what was read, what is unlike other days.

Made from the run's manifest and those of the days before; pure, and plain enough for JSON.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from cmsspark.access import UNMATCHED_BINS
from cmsspark.checks.reconciliation import FEW_RECORDS_SHARE, UNMATCHED_FACTOR, usual
from cmsspark.sources.registry import STREAMS_NEEDING_REPLICAS

Manifest = Mapping[str, Any]

#: Bins in the order in which they are shown, and what they mean to a person.
BINS: Final[Mapping[str, str]] = {
    "matched": "matched a dataset",
    "user_file": "file of a user or group",
    "temporary": "temporary file",
    "not_in_dbs": "not in DBS",
    "no_lfn": "no file name",
    "write_only": "only written",
    "out_of_day": "of another day",
    "malformed": "malformed",
}
#: Bins of accesses, which went through the joins; the others are decided before.
_JOINED: Final = ("matched", "user_file", "temporary", "not_in_dbs")
_FACTS: Final = (
    *("job", "day", "run", "partial", "missing_streams", "seconds", "engine", "join", "reduction_factor", "tables"),
    *("dumps", "catalogue", "damaged", "identical_files", "warnings", "versions", "pseudonym_key_id", "period"),
)


def report(
    manifest: Manifest,
    before: Sequence[Manifest] = (),
    stored: Mapping[str, int] | None = None,
    quarantine: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """The report as JSON tells it.

    ``before``: manifests of earlier days, newest first. ``stored``: accesses in the stored report by stream, counted
    when the report is made; None where that was not done. ``quarantine``: what was kept of malformed records.
    """
    bins = manifest.get("reconciliation") or {}
    streams = [_stream(stream, one, manifest, before) for stream, one in bins.items()]
    return {
        **{name: manifest[name] for name in _FACTS if name in manifest},
        "read": sum(one["read"] for one in streams),
        "streams": streams,
        "joins": [join for one in streams for join in _joins(one, manifest, stored)],
        "quarantine": quarantine,
        "trailing_days": _trailing([manifest, *before]),
    }


def counts(one: Mapping[str, Any]) -> dict[str, int]:
    """A stream's bins as they stand in a manifest, in one mapping."""
    return {name: one["unmatched"][name] if name in UNMATCHED_BINS else one[name] for name in BINS}


def by_prefix(report: Mapping[str, Any]) -> list[tuple[str, dict[str, int]]]:
    """Beginnings of names that DBS does not know, each with its records by stream; the most frequent first."""
    found: dict[str, dict[str, int]] = {}
    for one in report["streams"]:
        for prefix, count in one["unmatched_prefixes"] or ():
            found.setdefault(prefix, {})[one["stream"]] = count
    return sorted(found.items(), key=lambda entry: (-sum(entry[1].values()), entry[0]))


def _stream(stream: str, one: Mapping[str, Any], manifest: Manifest, before: Sequence[Manifest]) -> dict[str, Any]:
    read = next((given for given in manifest.get("inputs", ()) if given.get("stream") == stream), None)
    prefixes = manifest.get("unmatched_prefixes", {}).get(stream)
    return {
        "stream": stream,
        "read": one["read"],
        "is_missing": stream in manifest.get("missing_streams", ()),
        "bins": [
            {"bin": name, "records": count, "share": _share(count, one["read"])} for name, count in counts(one).items()
        ],
        "input": read and {
            **{name: read.get(name) for name in ("folder", "form", "is_tmp")},
            "files": len(read["files"]),
            "bytes": sum(size for _, size, _ in read["files"]),
        },
        "generations": manifest.get("generations", {}).get(stream, {}),
        "out_of_day": manifest.get("out_of_day_by_day", {}).get(stream, {}),
        "drift": manifest.get("drift", {}).get(stream, []),
        "unmatched_prefixes": None if prefixes is None and manifest.get("join") == "shuffle" else prefixes or [],
        "usual": _usual(stream, one, before),
    }  # fmt: skip


def _share(part: int, whole: int) -> float | None:
    return round(part / whole, 6) if whole else None


def _usual(stream: str, one: Mapping[str, Any], before: Iterable[Manifest]) -> dict[str, Any]:
    """The day against the trailing days: ``word`` is usual, few, none, unmatched, or unknown where days are too few."""
    known = usual(stream, [manifest.get("reconciliation") or {} for manifest in before])
    if known is None:
        return {"word": "unknown"}
    now = _share(sum(one["unmatched"].values()), one["read"])
    word = "usual"
    if not one["read"]:
        word = "none"
    elif one["read"] < FEW_RECORDS_SHARE * known.read:
        word = "few"
    elif now is not None and now > UNMATCHED_FACTOR * known.unmatched_share:
        word = "unmatched"
    return {
        "word": word,
        "days": known.days,
        "read": known.read,
        "factor": round(one["read"] / known.read, 3),
        "unmatched_share": now,
        "usual_unmatched_share": round(known.unmatched_share, 6),
    }


def _joins(one: Mapping[str, Any], manifest: Manifest, stored: Mapping[str, int] | None) -> list[dict[str, Any]]:
    """What was counted before and after each join: a join may neither lose nor multiply an access.

    Before: the decoders' counts of what went into the catalogue's join. After: accesses in the tables and their bins.
    """
    if one["is_missing"]:
        return []
    found = {entry["bin"]: entry["records"] for entry in one["bins"]}
    after = sum(found[name] for name in _JOINED)
    into = one["read"] - sum(count for name, count in found.items() if name not in _JOINED)
    asks = "phedex" in manifest.get("dumps", {}) and one["stream"] in STREAMS_NEEDING_REPLICAS
    told = [_join(one["stream"], "file → dataset" + (", block and site → replicas" if asks else ""), into, after)]
    if stored is not None:
        told.append(_join(one["stream"], "accesses → stored report", found["matched"], stored.get(one["stream"], 0)))
    return told


def _join(stream: str, what: str, rows_in: int, rows_out: int) -> dict[str, Any]:
    return {"stream": stream, "join": what, "rows_in": rows_in, "rows_out": rows_out, "is_right": rows_in == rows_out}


def _trailing(newest_first: Sequence[Manifest]) -> list[dict[str, Any]]:
    """Records of each stream on the days before and on this one, oldest first."""
    return [
        {
            "day": manifest.get("day"),
            "read": {stream: one["read"] for stream, one in bins.items()},
            "matched": {stream: one["matched"] for stream, one in bins.items()},
        }
        for manifest in reversed(newest_first)
        if (bins := manifest.get("reconciliation"))
    ]
