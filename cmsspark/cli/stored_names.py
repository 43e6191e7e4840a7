"""Completion of datasets and sites in the shell: the names of the newest stored day."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

import click
from click.shell_completion import CompletionItem

from cmsspark.settings.settings import load_settings

#: At most this many names are offered.
_MANY = 1_000


class StoredName(click.ParamType):  # type: ignore[type-arg]  # generic from click 8.5 on only
    """A text, for which a shell offers the stored values of a column of ``data_aggregation``."""

    def __init__(self, column: str) -> None:
        self.name, self.column = column.partition("_")[0], column

    def shell_complete(
        self, ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> list[CompletionItem]:
        # Without a store, or with a damaged one, a shell offers nothing.
        with suppress(Exception):
            names = _names(self.column, ctx.params.get("fout"), ctx.params.get("settings_file"))
            return [CompletionItem(name) for name in names if name.startswith(incomplete)][:_MANY]
        return []


def _names(column: str, fout: str | None, settings_file: str | None) -> list[str]:
    """Return the names of the newest day on a local disk, sorted. A file in the cache
    directory has them until the next run.
    """
    from cmsspark.filesystems.storage import LocalFiles
    from cmsspark.store.stored_columns import newest

    settings = load_settings(settings_file)
    _, table = newest(LocalFiles(), fout or settings.store or "", "data_aggregation")
    cache = settings.cache_dir / "names" / f"{table.manifest.run}.{column}"
    if not cache.exists():
        import pyarrow.compute as pc
        import pyarrow.parquet as pq

        parts = sorted(Path(table.path).glob("part-*.parquet"))
        columns = (pq.read_table(part, columns=[column])[column] for part in parts)
        values = {name for values in columns for name in pc.unique(values).to_pylist()}
        cache.parent.mkdir(parents=True, exist_ok=True)
        for old in cache.parent.glob(f"*.{column}"):
            old.unlink()
        cache.write_text("\n".join(sorted(name for name in values if name)), encoding="utf-8")
    return cache.read_text(encoding="utf-8").splitlines()


DATASET = StoredName("dataset_name")
SITE = StoredName("site_name")
