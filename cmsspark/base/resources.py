"""Resource files of the package: schemas, profiles, source folders, templates.

In a wheel, and in the zip for a cluster, they are inside the package; in a checkout
they are at its top level. Only this module resolves them.
"""

from __future__ import annotations

from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Any

import yaml


def resource(name: str) -> Traversable:
    """Return the resource ``name``, for example ``etc/sources.yaml`` or
    ``schemas/tables/partials.yaml``.

    Raises FileNotFoundError where the installation does not have it.
    """
    packaged = files("cmsspark").joinpath(*name.split("/"))
    if packaged.is_file() or packaged.is_dir():
        return packaged
    in_checkout = Path(__file__).resolve().parents[2].joinpath(*name.split("/"))
    if in_checkout.exists():
        return in_checkout
    raise FileNotFoundError(f"{name} is not part of this installation of cmsspark")


def read_text(name: str) -> str:
    """Return the text of a resource."""
    return resource(name).read_text(encoding="utf-8")


def read_yaml(name: str) -> Any:
    """Return the values of a YAML resource, loaded safely."""
    # libyaml where PyYAML has it: PyYAML's own parser takes seven times as long.
    return getattr(yaml, "CSafeLoader", yaml.SafeLoader)(read_text(name)).get_single_data()
