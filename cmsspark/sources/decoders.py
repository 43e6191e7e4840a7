"""Loads the decoders that the registry of streams names."""

from __future__ import annotations

import importlib
from typing import Any

from cmsspark.sources.registry import find_stream


def load_decoder(stream: str, format_name: str) -> Any:
    """Import the class that reads a format of a stream; one that reads several streams
    is made one of this stream.

    Raises UsageError (2) for a stream or format that the registry does not have.
    """
    format_ = find_stream(stream).format(format_name)
    module, _, attribute = format_.decoder.partition(":")
    decoder = getattr(importlib.import_module(module), attribute)
    return decoder if decoder.stream else type(attribute, (decoder,), {"stream": stream})
