"""Which site read from which: parts of the page of all sites and of one site."""

from __future__ import annotations

from functools import partial
from typing import Any, Final

from cmsspark.apps.dashboard.downloads import rows_to_arrow
from cmsspark.apps.dashboard.page_request import PageRequest
from cmsspark.apps.dashboard.selection import Selection
from cmsspark.apps.dashboard.widgets import Cell, Column, HeatMap, Section, Table, shown
from cmsspark.pages.charts import rank_names

#: Sites of the matrix on each side, those with the most accesses.
_SITES: Final = 15
_ROWS: Final = 20
_ABOUT: Final = "Accesses of AAA whose records name the site of the reader and of the server."
_NAMES: Final = ("reader_site", "source_site")


def matrix_sections(request: PageRequest, chosen: Selection) -> list[Section]:
    """Return the matrix of readers by sources; nothing where no pair is stored."""
    rows = _pairs(request, chosen, "reader_site IS NOT NULL AND source_site IS NOT NULL", _NAMES)
    if not rows:
        return []
    values = {(shown(reader), shown(source)): accesses for reader, source, accesses, _ in rows}
    readers, sources = (rank_names(values, side)[:_SITES] for side in (0, 1))
    values = {
        pair: count for pair, count in values.items() if pair[0] in readers and pair[1] in sources
    }
    links = {shown(site): request.site_link(site) for row in rows for site in row[:2]}
    download = partial(rows_to_arrow, (*_NAMES, "accesses", "read_bytes"), rows)
    caption = "Accesses by site of the reader (rows) and of the source (columns), the most used"
    return [
        Section(
            "Which site reads from which",
            [HeatMap("site_pairs", caption, readers, sources, values, "count", download, links)],
            _ABOUT,
        )
    ]


def site_sections(request: PageRequest, chosen: Selection, site: str) -> list[Section]:
    """Return what a site reads from which sites, and which sites read from it; nothing
    where no pair is stored.
    """
    sections = []
    for name, other_side, title in (
        ("reads_from", "source_site", "Reads from"),
        ("is_read_by", "reader_site", "Is read by"),
    ):
        own_side = _NAMES[1 - _NAMES.index(other_side)]
        rows = _pairs(request, chosen, f"{own_side} = ?", (other_side,), site)
        if rows:
            columns = (
                Column(other_side, "Site"),
                Column("accesses", "Accesses", "count"),
                Column("read_bytes", "Read", "bytes"),
            )
            cells = [(_cell(request, row[0]), *row[1:]) for row in rows]
            table = Table(name, columns, cells, f"{title}, by AAA", bars=1, limit=_ROWS)
            sections.append(Section(title, [table], _ABOUT, is_half=True))
    return sections


def _pairs(
    request: PageRequest, chosen: Selection, condition: str, keys: tuple[str, ...], *values: str
) -> list[tuple[Any, ...]]:
    """Return (keys …, accesses, bytes), the most accesses first."""
    if not request.database.days("site_pairs"):
        return []
    where, parameters = chosen.where(("stream", "data_tier"))
    return request.database.query(
        f"SELECT {', '.join(keys)}, sum(accesses) AS accesses, sum(read_bytes) AS read_bytes FROM site_pairs "
        f"WHERE {where} AND {condition} GROUP BY ALL ORDER BY accesses DESC, {', '.join(keys)}",
        [*parameters, *values],
    ).rows


def _cell(request: PageRequest, site: str | None) -> Any:
    return "not named in the log" if site is None else Cell(shown(site), request.site_link(site))
