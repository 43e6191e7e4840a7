"""Who may see the pages, and what a browser may do with them.

Without a token only this host is served. The ``Host`` header must name this server, so
that a foreign page cannot reach it under a name of its own (DNS rebinding). Everything
is read only: other methods than GET and HEAD are refused, but for the form that takes
the token.
"""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
import re
from collections.abc import Collection, Mapping
from typing import Final

import msgspec

LOOPBACK: Final = frozenset({"localhost", "127.0.0.1", "::1"})
_HOST: Final = re.compile(r"(?:\[([0-9a-f:.]+)\]|([^\[\]:/@\s]+))(?::\d*)?", re.ASCII)
#: The longest address that is answered.
MAX_ADDRESS: Final = 16_000
COOKIE_SECONDS: Final = 30 * 86_400
HEADERS: Final = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
        "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
    ),
    "X-Frame-Options": "DENY",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=()",
    "Cache-Control": "private, no-cache",
}
#: A report of a run is a page of its own: styles inside, no script, and no way to anything else.
REPORT_POLICY: Final = (
    "default-src 'none'; style-src 'unsafe-inline'; img-src data:; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'; sandbox"
)


def is_loopback(host: str) -> bool:
    """Return whether only this host can reach an address."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def name_visitor(address: str, headers: Mapping[str, str]) -> str:
    """Return who asks, for limits for each visitor: an address and its browser. Of a
    proxy on this host it is the address that the proxy saw.
    """
    forwarded = headers.get("X_FORWARDED_FOR", "").rpartition(",")[2].strip()
    host = forwarded if forwarded and is_loopback(address) else address
    return f"{host} {headers.get('USER_AGENT', '')}"[:500]


class Guard(msgspec.Struct, frozen=True):
    """``token``: what opens the pages, None where none is needed. ``hosts``: names
    under which they are served.

    A number as host is served in any case: foreign names are the danger, and a number is no name.
    """

    token: str | None = None
    hosts: Collection[str] = msgspec.field(default_factory=frozenset)
    port: int = 0

    @property
    def cookie_name(self) -> str:
        """Cookies of one host are shared by all its ports."""
        return f"cmsspark_{self.port}"

    @property
    def cookie_value(self) -> str:
        """What the cookie holds: the token cannot be read from it."""
        return hashlib.sha256(b"cmsspark dashboard\0" + (self.token or "").encode()).hexdigest()

    def is_host(self, header: str) -> bool:
        """Return whether a ``Host`` header names this server."""
        name = _host_name(header)
        if name in LOOPBACK or name in {host.lower() for host in self.hosts}:
            return True
        try:
            ipaddress.ip_address(name)
        except ValueError:
            return False
        return self.token is not None

    def is_token(self, text: str) -> bool:
        """Return whether a text is the token; takes the same time for every wrong one."""
        return self.token is None or hmac.compare_digest(text.encode(), self.token.encode())

    def is_cookie(self, text: str) -> bool:
        """Return whether a cookie's value is the right one; takes the same time for
        every wrong one.
        """
        return self.token is None or hmac.compare_digest(text.encode(), self.cookie_value.encode())


def _host_name(header: str) -> str:
    """Return the name in a ``Host`` header, without its port; an empty text for anything else."""
    match = _HOST.fullmatch(header.strip().lower())
    return (match[1] or match[2]).removesuffix(".") if match else ""
