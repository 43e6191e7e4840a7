"""Jobs on tables of Rucio about locks, rules and usage, and on tasks of CRAB: a job says
which tables it reads and what it makes of them (rules 64 to 78).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import date
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, Final

import click
import msgspec
from msgspec.structs import replace

from cmsspark.base import dates
from cmsspark.base.errors import DataError, UsageError
from cmsspark.base.manifests import Manifest
from cmsspark.base.schemas import stored_table
from cmsspark.cli.options import (
    engine_option,
    job_options,
    output_options,
    print_outcome,
    require_store,
    with_sources,
)
from cmsspark.counting import row_use
from cmsspark.filesystems.storage import Files
from cmsspark.run.dump_day import run
from cmsspark.run.request import JobRequest, NamePatterns
from cmsspark.settings import pseudonyms
from cmsspark.settings.pseudonyms import Pseudonyms
from cmsspark.settings.settings import load_settings
from cmsspark.sources import dumps as dump_folders
from cmsspark.sources.accounts import PERSONS, Accounts, load_accounts
from cmsspark.sources.dumps import Dump
from cmsspark.sources.layout import Layout
from cmsspark.sources.registry import TASKS
from cmsspark.store.own_jobs import Job, declare

if TYPE_CHECKING:
    import pyarrow as pa

    from cmsspark.dumps.dump_plan import Transport
    from cmsspark.dumps.row_tables import Reduce, RowFilter
    from cmsspark.settings.settings import Settings
    from cmsspark.sources.rses import Rses
    from cmsspark.sources.rucio import TableCounts

#: A row of a table, by column; ``day`` and ``timestamp`` are added.
Made = dict[str, Any]
_LARGEST = 2**63 - 1
#: Bytes of Python's values for a byte of numbers of the same rows.
_ROW_WEIGHT: Final = 16


class RowInputs(msgspec.Struct, dict=True):
    """The inputs of a run, and what was counted of them. ``t0_ms``: the start of the day
    of Rucio's dump, or of that of tasks where the job reads no other.
    """

    request: JobRequest
    transport: Transport
    files: Files
    dumps: list[Dump]
    counts: dict[str, TableCounts] = msgspec.field(default_factory=dict)
    manifest: dict[str, Any] = msgspec.field(default_factory=dict)
    warnings: list[str] = msgspec.field(default_factory=list)

    @property
    def day(self) -> date:
        """The day that was asked for."""
        return self.request.day

    @cached_property
    def dump(self) -> Dump:
        """The dump of Rucio, or of tasks where there is no other."""
        of_rucio = [dump for dump in self.dumps if dump.kind == "rucio"]
        return [*self.dumps[-1:], *of_rucio][-1]

    @cached_property
    def t0_ms(self) -> int:
        return dates.start_ms(self.dump.day or self.day)

    @cached_property
    def pseudonyms(self) -> Pseudonyms:
        """The key of the day's pseudonyms."""
        path = self.request.settings.state_dir / pseudonyms.KEY_FILE
        return pseudonyms.load_or_make(path, self.day)

    def read_rses(self, *, with_tests: bool = False) -> Rses:
        """Return the storage elements of the dump."""
        from cmsspark.dumps.rucio_scan import read_rses
        from cmsspark.run.catalogue_snapshots import opened

        rses, counts = read_rses(
            self.dump,
            self.request.settings.rses,
            partial(opened, self.files),
            with_tests=with_tests,
        )
        self.counts["RSES"] = counts
        return rses

    def read(
        self,
        readings: Iterable[str],
        reduce: Reduce,
        filters: Mapping[str, RowFilter] | None = None,
    ) -> dict[str, list[pa.Table]]:
        """Return the tables that ``reduce`` makes of the rows of the readings, those of
        each key together. Raises DataError (65).
        """
        from cmsspark.dumps.row_tables import read_rows

        scan = self.scan(readings)
        tables, counts = read_rows(
            *(self.transport, scan, reduce, self.key_count(scan.weight * _ROW_WEIGHT), filters)
        )
        self.counts |= counts
        return tables

    def scan(self, readings: Iterable[str]) -> Any:
        """Return the files of readings."""
        from cmsspark.dumps.row_tables import RowScan
        from cmsspark.sources.rucio_tables import ROW_TABLES

        listed = []
        for name in readings:
            table = ROW_TABLES[name].table
            dump = self._find_dump(name, table)
            listed += [(name, file) for file in dump.tables.get(table, ())] if dump else []
        return RowScan(listed)

    def _find_dump(self, reading: str, table: str) -> Dump | None:
        from cmsspark.sources.rucio_tables import RULES_BEFORE

        if table in TASKS.tables:
            return next(dump for dump in self.dumps if dump.kind == TASKS.name)
        if reading == RULES_BEFORE:
            before = [dump for dump in self.dumps if dump.kind == "rucio"][:-1]
            return before[0] if before else None
        return self.dump

    def key_count(self, weight: int) -> int:
        """Return into how many keys the rows of so many bytes are divided."""
        from cmsspark.dumps.dump_plan import key_count

        return key_count(weight, self.transport.key_bytes)

    def describe(self, before: Sequence[Manifest]) -> dict[str, Any]:
        """Return the entries of the manifest. Raises DataError (65) if none of many
        rows of a table is used.
        """
        from cmsspark.dumps.rucio_scan import count_uses
        from cmsspark.sources.rucio_tables import ROW_TABLES

        uses: dict[str, row_use.RowUse] = {}
        for name, counts in self.counts.items():
            described = ROW_TABLES.get(name)
            if described is not None and not described.key:
                continue
            uses |= count_uses(name, counts)
        warnings = [*self.warnings, *row_use.check(uses, before)]
        tables = {name: counts.as_dict() for name, counts in sorted(self.counts.items())}
        return {
            "rows": {"tables": tables},
            **row_use.describe(uses),
            **self.manifest,
            "warnings": warnings,
        }


def listed_rows(tables: Mapping[str, Sequence[pa.Table]], name: str) -> list[dict[str, Any]]:
    """Return the rows of a name that the tables of all keys have."""
    return [row for table in tables.get(name, ()) for row in table.to_pylist()]


def account_types(tables: Mapping[str, Sequence[pa.Table]]) -> dict[str, str | None]:
    """Return ACCOUNT_TYPE of each account, of rows of ACCOUNTS."""
    return {row["ACCOUNT"]: row["ACCOUNT_TYPE"] for row in listed_rows(tables, "ACCOUNTS")}


class AccountNames(msgspec.Struct, frozen=True):
    """Accounts as tables have them: their class, and the name or the pseudonym (rules
    65 and 68). ``types``: ACCOUNT_TYPE of the accounts of a dump.
    """

    types: Mapping[str, str | None]
    pseudonyms: Pseudonyms
    accounts: Accounts = msgspec.field(default_factory=load_accounts)

    def describe(self, account: str | None) -> tuple[str, str]:
        """Return the name and the class of an account."""
        of_class = self.accounts.account_class(account, self.types.get(account or ""))
        if not account:
            return "unknown", of_class
        name = self.pseudonyms.pseudonym(account) if of_class in PERSONS else account
        return name, of_class


class RowJob(msgspec.Struct, frozen=True):
    """A job on such tables. ``tables``: its stored tables, the first one with its name.
    ``rucio``: the tables of Rucio's dump that it needs, without which it is not ready
    (75). ``optional``: those that it reads if the dump has them. ``reads_tasks``: it
    reads the tasks of CRAB. ``before``: tables of the dump of the day before.

    ``build(inputs)`` returns the rows of each table.
    """

    name: str
    about: str
    build: Callable[[RowInputs], Mapping[str, Sequence[Made]]]
    tables: tuple[str, ...] = ()
    rucio: tuple[str, ...] = ()
    optional: tuple[str, ...] = ()
    reads_tasks: bool = False
    before: tuple[str, ...] = ()
    options: tuple[Callable[[Any], Any], ...] = ()
    configured: Callable[[Mapping[str, Any]], Callable[..., Any]] | None = None

    def declare(self, module: str) -> RowJob:
        """Declare the job in the index of jobs; returns it."""
        declare(
            Job(
                self.name,
                self.about,
                self.tables or (self.name,),
                aliases=self.tables[1:],
                runs_in_processes=True,
                reads_dumps=True,
                module=module,
            ),
            self.command,
            self.request,
            self.choose,
        )
        return self

    def only(self, patterns: NamePatterns | None) -> RowJob:
        """Return the job. Raises UsageError (2) with patterns: no row is of a dataset."""
        if patterns is not None:
            raise UsageError(f"{self.name} has no datasets that --patterns could choose")
        return self

    def choose(self, files: Files, layout: Layout, day: date) -> list[Dump]:
        """Return the dumps for the day. Raises InputMissing (66), NotReady (75)."""
        chosen: list[Dump] = []
        if self.rucio:
            dump = dump_folders.choose_rucio_dump(files, layout, day, self.rucio)
            dump = dump_folders.with_tables(files, dump, self.optional)
            if self.before and dump.day is not None:
                earlier = date.fromordinal(dump.day.toordinal() - 1)
                before = dump_folders.find_rucio_dump(files, layout, earlier, self.before)
                chosen += [replace(before, distance_days=1, warnings=())] if before else []
            chosen.append(dump)
        if self.reads_tasks:
            chosen.append(dump_folders.choose_task_dump(files, layout, day))
        return chosen

    def request(self, options: Mapping[str, Any], settings: Settings, fout: str) -> RowRequest:
        """Return the request that the parsed options make."""
        request = RowRequest(
            self.name,
            options["day"],
            fout,
            with_sources(settings, options.get("source", ())),
            options["root"],
            fmt=options["fmt"],
            engine=options["engine"],
        )
        kinds = ("rucio",) if self.rucio else ()
        return replace(request, kinds=(*kinds, TASKS.name) if self.reads_tasks else kinds)

    def command(self) -> click.Command:
        """Return the job's click command."""

        @click.command(self.name, help=f"{self.about}. Exit codes: cmsspark help exit-codes.")
        @job_options
        @output_options
        @engine_option
        def command(
            settings_file: str | None, fout: str | None, as_json: bool, **options: Any
        ) -> None:
            settings = load_settings(settings_file)
            request = self.request(options, settings, require_store(fout, settings))
            job = replace(self, build=self.configured(options)) if self.configured else self
            print_outcome(self.name, request.day, as_json, lambda: run(job, request))

        for option in self.options:
            command = option(command)
        return command

    def make(
        self,
        request: JobRequest,
        transport: Transport,
        files: Files,
        dumps: list[Dump],
        before: list[Manifest],
    ) -> tuple[dict[str, pa.Table], dict[str, Any]]:
        """Return the tables, and entries of the manifest. Raises DataError (65)."""
        inputs = RowInputs(request, transport, files, dumps)
        rows = self.build(inputs)
        added = {"day": request.day, "timestamp": dates.start_ms(request.day)}
        tables = {name: to_table(name, rows, added) for name, rows in rows.items()}
        return tables, inputs.describe(before)


class RowRequest(JobRequest, frozen=True):
    """A request to a job on rows. ``kinds``: the dumps that it reads."""

    kinds: tuple[str, ...] = ()

    @property
    def sources(self) -> tuple[str, ...]:
        """The names of the dumps that the job reads."""
        return self.kinds


def to_table(name: str, rows: Sequence[Made], added: Mapping[str, Any]) -> pa.Table:
    """Return rows as a stored table, in the order of its keys. Raises DataError (65) for
    a sum beyond 64 bits, or a null if none may be.
    """
    import pyarrow as pa

    described = stored_table(name)
    ordered = sorted(rows, key=lambda row: [_order(row.get(key)) for key in described.keys])
    columns = {}
    for column in described.columns:
        values = [
            row[column.name] if column.name in row else added[column.name] for row in ordered
        ]
        if column.type == "long" and any(
            value is not None and value > _LARGEST for value in values
        ):
            raise DataError(f"a sum of {column.name} in {name} is beyond 2^63-1")
        if not column.nullable and None in values:
            raise RuntimeError(f"{name}.{column.name} has a null")
        columns[column.name] = pa.array(values, described.arrow().field(column.name).type)
    return pa.table(columns, schema=described.arrow())


def _order(value: Any) -> tuple[bool, Any]:
    return value is not None, value.encode() if isinstance(value, str) else value
