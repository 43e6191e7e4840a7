"""The source map of ``docs/feeds.md`` has a line for each field that is read."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from cmsspark.base.config_files import parse

TOP = Path(__file__).resolve().parents[2]
#: Feeds whose schemas have folders of their own, and the section of both.
SECTIONS = {"condor_costs": "condor"}
SCHEMAS = sorted((TOP / "schemas" / "inputs").glob("*/*.yaml"))


def source_map() -> dict[str, dict[str, list[str]]]:
    """Cells of the line of each field, by the feed of its section. Its producer
    stands above the table.
    """
    page = (TOP / "docs" / "feeds.md").read_text(encoding="utf-8")
    part = page.partition("\n## Source map\n")[2].partition("\n## ")[0]
    lines: dict[str, dict[str, list[str]]] = {}
    for section in part.split("\n### ")[1:]:
        title, _, text = section.partition("\n")
        fields = lines.setdefault(re.split(r"[,:]", title)[0], {})
        for row in text.splitlines():
            if not row.startswith("| `"):
                continue
            first, *cells = (cell.strip() for cell in row.strip("|").split(" | "))
            cells += re.findall(r"\bProducer: ([^|]+?)\.\n\n", text)
            for name in re.findall(r"`(.*?)`", first):
                fields[name] = cells
    return lines


def fields_read(schema: Path) -> list[str]:
    """The columns of a schema that are read, as the source map names them."""
    columns = parse(schema.read_bytes(), str(schema)).values["columns"]
    read = [column for column in columns if "not read" not in column.get("about", "")]
    return [column["name"].removeprefix("data.") for column in read]


@pytest.mark.parametrize("schema", SCHEMAS, ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_each_column_that_is_read_has_a_line_with_unit_unknown_values_subject_and_producer(
    schema: Path,
) -> None:
    feed = SECTIONS.get(schema.parent.name, schema.parent.name)
    lines = source_map().get(feed)
    assert lines is not None, f"docs/feeds.md, Source map, has no section `### {feed}: …`"
    missing = [name for name in fields_read(schema) if name not in lines]
    assert not missing, f"docs/feeds.md, Source map, has no line for {missing} of {schema.name}"
    assert all(len(lines[name]) == 4 and all(lines[name]) for name in fields_read(schema))


def test_the_schemas_have_fields_that_are_read() -> None:
    assert sum(len(fields_read(schema)) for schema in SCHEMAS) > 250
