"""Files that travel with the package: schemas, profiles, source folders, templates.

In a wheel, and in the zip that goes to a cluster, they lie inside the package; in a checkout they lie at its
top level. Both are found here, and nowhere else.
"""

from __future__ import annotations

from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Any

import yaml


def resource(name: str) -> Traversable:
    """The resource ``name``, for example ``etc/sources.yaml`` or ``schemas/tables/partials.yaml``.

    Raises FileNotFoundError when the installation lacks it.
    """
    inside = files("cmsspark").joinpath(*name.split("/"))
    if inside.is_file() or inside.is_dir():
        return inside
    beside = Path(__file__).resolve().parent.parent.joinpath(*name.split("/"))
    if beside.exists():
        return beside
    raise FileNotFoundError(f"{name} is not part of this installation of cmsspark")


def read_text(name: str) -> str:
    """The text of a resource."""
    return resource(name).read_text(encoding="utf-8")


def read_yaml(name: str) -> Any:
    """A YAML resource of our own, loaded safely."""
    return yaml.safe_load(read_text(name))
