"""The layout of the events in a folder of this host: of a sample, of prepared events, or that a model learned from."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Final

from cmsspark.apps.events.layout import EventLayout
from cmsspark.apps.events.topology import TOPOLOGY
from cmsspark.base.errors import DataError

SCHEMA_FILE: Final = "schema.json"


def layout_in(folder: Path) -> EventLayout:
    """Return the layout that ``schema.json`` of a folder describes; that of Delphes where there is none.

    Raises DataError (65) where the file is damaged.
    """
    path = folder / SCHEMA_FILE
    try:
        return EventLayout.from_document(json.loads(path.read_text(encoding="utf-8")), path)
    except FileNotFoundError:
        # Samples and models of earlier versions have all one layout.
        return TOPOLOGY
    except ValueError as error:
        raise DataError("the description of events is damaged", where=path, found=str(error)) from None
