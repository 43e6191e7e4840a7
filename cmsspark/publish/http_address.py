"""The address of an HTTP server, as credentials files name it."""

from __future__ import annotations

import ssl
from pathlib import Path

import msgspec

from cmsspark.settings.secrets import tls_context


class HttpAddress(msgspec.Struct, frozen=True):
    """``host``, ``port``, ``path`` of the URL, and whether it uses TLS. Its text form shows no secret.

    ``ca``, ``cert`` and ``key``: files in PEM; None for the system's authorities, and for no certificate of the client.
    """

    host: str
    port: int
    path: str
    is_secure: bool
    ca: Path | None = None
    cert: Path | None = None
    key: Path | None = None

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.where}>"

    @property
    def authority(self) -> str:
        """``host:port`` as URLs write it."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @property
    def where(self) -> str:
        """The address for people."""
        return f"{'https' if self.is_secure else 'http'}://{self.authority}{self.path}"

    def tls(self) -> ssl.SSLContext | None:
        """Return the TLS context, or None without TLS. Raises as :func:`cmsspark.settings.secrets.tls_context`."""
        return tls_context(self.ca, self.cert, self.key) if self.is_secure else None
