"""The sinks by name. A new sink is one module of this package and its line in
``_BUILT_IN``, or a module of an installed package with an entry point.

The module has two functions: ``read_credentials(path)`` returns what the sink needs to
log in (with ``producer`` and ``type``, each a text or None), or None if there is
nothing to read; ``build(credentials, options)`` returns the
:class:`cmsspark.publish.sink.Sink`.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import Any, Final, Protocol, cast

import msgspec

from cmsspark.base.entry_points import with_packages
from cmsspark.publish.sink import Sink, SinkOptions


class SinkModule(Protocol):
    """The interface of a sink's module."""

    def read_credentials(self, path: Path | None) -> Any: ...
    def build(self, credentials: Any, options: SinkOptions) -> Sink: ...


class SinkEntry(msgspec.Struct, frozen=True):
    """One sink. ``example``: the example of its credentials file in ``etc/``, or None
    if it needs no credentials.
    """

    module: str
    example: str | None = None

    def load(self) -> SinkModule:
        """Import the sink's module."""
        return cast("SinkModule", import_module(self.module))


_BUILT_IN: Final[Mapping[str, SinkEntry]] = {
    "file": SinkEntry("cmsspark.publish.sinks.file"),
    "stomp": SinkEntry("cmsspark.publish.sinks.stomp", example="amq_broker.example.json"),
    "http": SinkEntry("cmsspark.publish.sinks.http", example="monit_http.example.json"),
}
#: The sinks by the name that ``--sink`` takes; those of installed packages are modules
#: of the entry point group ``cmsspark.sinks``.
SINKS: Final[Mapping[str, SinkEntry]] = with_packages(
    "cmsspark.sinks", _BUILT_IN, lambda entry: SinkEntry(entry.value)
)
