"""``xcache``: what the caches of a day were asked for and had, by site, from XCache's
own records (rule 48).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from datetime import date
from typing import TYPE_CHECKING, Any, Final

import click

from cmsspark.base import dates
from cmsspark.base.errors import DataError, NotAllowed, NotReady, UsageError
from cmsspark.base.schemas import stored_table
from cmsspark.base.text.terminal import pluralize
from cmsspark.cli.options import (
    job_options,
    output_options,
    print_outcome,
    require_store,
    with_sources,
)
from cmsspark.counting import row_use
from cmsspark.counting.reconciliation import NONE_MATCHED_RECORDS, TRAILING_DAYS
from cmsspark.counting.row_use import RowUse
from cmsspark.filesystems.storage import Files
from cmsspark.run.period_run import store_tables
from cmsspark.run.provenance import check_unchanged, input_summary, is_all_local
from cmsspark.run.run_context import running
from cmsspark.settings.settings import load_settings
from cmsspark.sources.folders import DayInput, resolve_day
from cmsspark.sources.layout import Layout
from cmsspark.store import results, staged_runs
from cmsspark.store.own_jobs import Job, declare
from cmsspark.store.stored_columns import open_store

if TYPE_CHECKING:
    from cmsspark.settings.settings import Settings
    from cmsspark.sources.cache_records import CacheDecoder, CacheSums

#: The job, its table, and the feed in etc/sources.yaml.
NAME: Final = "xcache"
JOB: Final = Job(
    NAME,
    "Hits, misses and bytes from remote of the XRootD caches of a day, by site",
    (NAME,),
    needs_spark=False,
    feed=NAME,
    module=__name__,
)
#: As for log streams: more malformed records than this share and this number fail the run.
_SHARE, _RECORDS = 0.001, 10
_LIMIT: Final = 2**63 - 1


@click.command(NAME, help=f"{JOB.about}. Exit codes: cmsspark help exit-codes.")
@job_options
@output_options
@click.option(
    "--allow-tmp", is_flag=True, help="Read a day's .tmp folder where there is no final one."
)
def command(settings_file: str | None, fout: str | None, as_json: bool, **options: Any) -> None:
    if options["fmt"] != "parquet":
        raise UsageError(
            f"{NAME} is stored as Parquet", found="--format csv", next_step="leave out --format"
        )
    settings = with_sources(load_settings(settings_file), options["source"])
    day, store = options["day"], require_store(fout, settings)
    print_outcome(
        NAME,
        day,
        as_json,
        lambda: run(day, store, settings, root=options["root"], allow_tmp=options["allow_tmp"]),
    )


def run(
    day: date,
    fout: str,
    settings: Settings,
    *,
    root: str | None = None,
    allow_tmp: bool = False,
    log: Callable[[str], None] | None = None,
) -> results.CurrentTable:
    """Make the table of a day and store it; on any failure the previous result stays.

    Raises InputMissing (66), NotReady (75), DataError (65), OutputError (73).
    """
    import polars as pl

    with running(settings, fout, NAME, day, log) as run_context:
        layout = Layout.from_settings(settings, root)
        is_local = is_all_local(layout, [NAME], fout)
        files = open_store(fout if is_local else "hdfs://", f"cmsspark {NAME}", settings)
        run_context.lock(files)
        source = resolve_day(files, layout, NAME, day, allow_tmp=allow_tmp)
        decoder, bins = _read(files, source, day, settings)
        # Raise DataError (65) for too many malformed records, NotReady (75) for no
        # record at all.
        if not bins["read"]:
            raise NotReady(
                f"{NAME} is there but has no data",
                where=source.folder,
                found=f"{pluralize(len(source.files), 'file')} without any record",
                next_step="run again when the day is written",
            )
        if bins["malformed"] > _RECORDS and bins["malformed"] > _SHARE * bins["read"]:
            raise DataError(
                f"{NAME}: {bins['malformed']:,} of {bins['read']:,} records are malformed, tolerated are {100 * _SHARE} %",
                where=source.folder,
                next_step="compare the records with schemas/inputs/xcache/json.yaml",
            )
        set_aside = Counter({name: bins[name] for name in ("malformed", "out_of_day")})
        used = bins["read"] - set_aside.total()
        uses = {NAME: RowUse(bins["read"], used, set_aside, least_rows=NONE_MATCHED_RECORDS)}
        before = results.history(files, fout, NAME, day, TRAILING_DAYS)
        rows = pl.DataFrame(
            build(decoder.sites, day), schema=pl.Schema(stored_table(NAME).arrow())
        )
        manifest = {
            "records": bins,
            **row_use.describe(uses),
            "inputs": [{**input_summary(source), "stream": None, "table": NAME}],
            "partial": source.is_tmp,
            "warnings": [*source.warnings, *row_use.check(uses, before)],
        }

        def check(staged: staged_runs.StagedRun) -> dict[str, Any]:
            check_unchanged(files, [source])
            return {}

        return store_tables(
            run_context, files, {NAME: rows}, manifest, pluralize(rows.height, "row"), check
        )


def build(sites: dict[str, CacheSums], day: date) -> list[dict[str, Any]]:
    """Return a row for each site, sorted. Raises DataError (65) where a sum exceeds 64 bits."""
    rows = []
    for name, sums in sorted(sites.items()):
        remote = sums.disk_bytes + sums.bypass_bytes
        row = {
            "day": day,
            "site_name": name,
            "server_count": len(sums.servers),
            "file_count": len(sums.sizes),
            "file_bytes": sum(sums.sizes.values()),
            "close_count": sums.closes,
            "access_count": sum(sums.opens.values()),
            "hit_bytes": sums.hit_bytes,
            "missed_bytes": sums.missed_bytes,
            "bypass_bytes": sums.bypass_bytes,
            "remote_bytes": remote,
            "explicit_remote_bytes": max(0, remote - sums.prefetch_bytes),
            "timestamp": dates.start_ms(day),
        }
        if max(value for value in row.values() if isinstance(value, int)) > _LIMIT:
            raise DataError(
                f"a sum of {name} is beyond 2^63-1", next_step="look for absurd sizes in the log"
            )
        rows.append(row)
    return rows


def _read(
    files: Files, source: DayInput, day: date, settings: Settings
) -> tuple[CacheDecoder, dict[str, int]]:
    """Return the sums of all files, and the number of records by bin."""
    from cmsspark.sources.cache_records import CacheDecoder
    from cmsspark.sources.formats import lines
    from cmsspark.sources.values import Apps
    from cmsspark.store.part_files import open_part

    decoder = CacheDecoder(day, Apps.load())
    bins = {"read": 0, "malformed": 0, "out_of_day": 0}
    for file in source.files:
        try:
            with open_part(files, file.path) as stream:
                for batch in lines.decode_file(
                    decoder, stream, file.path, line_limit=settings.max_line_bytes
                ):
                    bins["read"] += batch.read
                    bins["malformed"] += len(batch.malformed)
                    bins["out_of_day"] += sum(batch.out_of_day.values())
        except PermissionError as error:
            raise NotAllowed(
                "a file of XCache cannot be read", where=file.path, found=error.strerror
            ) from None
        except OSError as error:
            raise DataError(
                "a file of XCache cannot be read", where=file.path, found=error.strerror
            ) from None
    return decoder, bins


declare(JOB, lambda: command)
