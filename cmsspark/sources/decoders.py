"""Loads the decoders that the registry of streams names."""

from __future__ import annotations

import importlib
from typing import Any

from cmsspark.sources.registry import Format


def load_decoder(format_: Format) -> Any:
    """Import and return the decoder's class."""
    module, _, attribute = format_.decoder.partition(":")
    return getattr(importlib.import_module(module), attribute)
