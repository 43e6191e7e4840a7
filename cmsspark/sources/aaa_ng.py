"""Today's AAA: one record for each file close, by the OSG collectors of XRootD (rules
41 to 47, ``docs/feeds.md``).

The needed fields are in ``data``, or beside ``metadata`` in the record itself. The site
is that of the server. Sites of both ends are only compared with each other, as their
names are those of another catalogue of sites.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

import msgspec

from cmsspark.base.access import Remote
from cmsspark.sources.access_decoder import AccessDecoder
from cmsspark.sources.formats.fast_json import AccessKeys, Route, fast_access_lines
from cmsspark.sources.formats.json_lines import CheckedRecord, Metadata, line_type, split_flat
from cmsspark.sources.formats.strict_json import Fields
from cmsspark.sources.record_schema import FormatVersions, Never, load_schema
from cmsspark.sources.rses import is_same_place
from cmsspark.sources.values import UNKNOWN, as_is

#: The begin of a status that says that a site was found.
_RESOLVED: Final = "resolved"
#: Attributes that decide an access's site (two fields) and whether it is remote, in the
#: order of ``AccessKeys.ends``.
_ENDS: Final = ("site", "source", "target", "source_status", "target_status")


class AaaNgDecoder(AccessDecoder):
    """Decodes lines of the stream ``aaa`` in its third format, of either form."""

    stream = "aaa"
    shared = ("user", "app", *_ENDS)
    #: What a collector writes for a file whose open it has not seen (rule 43).
    no_names = ("unknown", "missing directory")

    def line_types(self) -> Sequence[Any]:
        """Return the types of a line whose fields are beside ``metadata``, and of one
        whose fields are in ``data``.
        """
        lfn = next(field for field in self.schema.fields if field.attribute == "lfn")
        no_data = msgspec.field(default=msgspec.UNSET, name="data")
        more = [
            ("lfn", lfn.type),
            ("metadata", Metadata | None, None),
            ("no_data", Never, no_data),
        ]
        flat = self.schema.struct(
            "FlatLine", more, kw_only=True, namespace={"data": property(lambda line: line)}
        )
        return flat, line_type("Line", self.data_type)

    def meaning(self, attribute: str) -> Callable[[str | None], Any]:
        """Return what maps the texts of an attribute to those of a group."""
        if attribute.endswith("_status"):
            return is_resolved
        # The sites of both ends are only compared.
        return as_is if attribute in ("source", "target") else super().meaning(attribute)

    def _use_compiled(self) -> None:
        keys = self.schema.keys
        (name,) = keys("lfn")
        sizes = keys("read_bytes"), keys("write_bytes")
        access_keys = AccessKeys(name, keys(*self.shared), keys(*_ENDS), *sizes, self.no_names)
        self._fast_lines = fast_access_lines(
            self.day_number, access_keys, self._meanings, *self._numbering
        )

    @classmethod
    def format_versions(cls) -> FormatVersions:
        """Return one version; its fields are in ``data`` or in the record itself."""
        is_flat = lambda record: "data" not in record and "file_lfn" in record  # noqa: E731
        return FormatVersions.from_schema(load_schema("aaa/aaa-ng"), is_flat=is_flat)

    def _number(self, key: tuple[Any, ...]) -> int:
        user, app, *ends = key
        return self.groups.number(user, app, self._find_route(ends))

    def _number_route(self, sites: tuple[Any, ...]) -> int:
        return self.groups.routes[self._find_route(sites)]

    def _find_route(self, ends: Sequence[Any]) -> Route:
        """Return the route of an access, by what its texts of ``_ENDS`` mean."""
        logged, server, source, target, *resolved = ends
        site = server if logged == UNKNOWN else logged
        if site == UNKNOWN or not (source and target and all(resolved)):
            remote = Remote.UNKNOWN
        else:
            is_here = is_same_place(target, source, self.storage_sites)
            remote = Remote.NO if is_here else Remote.YES
        # The sites of both ends have other names than the server (rule 44): only a
        # reader at the server has the same.
        return site, remote, site if remote == Remote.NO else None

    def strict(self, fields: Fields) -> Any:
        """Return the record of a strictly parsed line. Raises Malformed."""
        values, metadata = split_flat(fields, "file_lfn")
        return CheckedRecord(self.data_type(**self.schema.check_all(values, "")), metadata)


def is_resolved(status: str | None) -> Any:
    """Return whether a site with this status counts: null, empty, or a text that begins
    with ``resolved`` (rule 45).
    """
    return not status or status.startswith(_RESOLVED)
