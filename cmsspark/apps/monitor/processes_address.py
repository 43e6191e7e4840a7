"""The address that a collector listens on: what may be reached from where, and its certificate."""

from __future__ import annotations

import ipaddress
import ssl
from contextlib import suppress
from pathlib import Path

from cmsspark.base.errors import SettingsError, UsageError
from cmsspark.base.text.readable import readable


def server_tls(certificate: Path | None, key: Path | None) -> ssl.SSLContext | None:
    """TLS 1.2 or newer with a certificate; None without one. Raises SettingsError (78), NotAllowed (77)."""
    if certificate is None:
        return None
    from cmsspark.settings.secrets import open_private

    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        with open_private(key or certificate, "a file with a private key") as stream:
            context.load_cert_chain(certificate, f"/dev/fd/{stream.fileno()}", password=lambda: "")
    except ssl.SSLError as error:
        raise SettingsError(
            "a certificate and its key must be in PEM form, without a pass phrase",
            where=certificate,
            found=readable(error.reason or str(error)),
        ) from None
    except OSError as error:
        raise SettingsError("a certificate file cannot be read", where=certificate, found=error.strerror) from None
    return context


def check_address(host: str, has_tls: bool, is_plain_allowed: bool) -> None:
    """Raises UsageError (2) for an address that others reach without TLS: the token would travel as it is."""
    with suppress(ValueError):
        if ipaddress.ip_address(host).is_loopback:
            return
    if host == "localhost" or has_tls or is_plain_allowed:
        return
    raise UsageError(
        "an address that other hosts reach needs TLS: the token would travel as it is",
        where=f"--host {host}",
        next_step="give --tls-cert and --tls-key, a tunnel to 127.0.0.1, or --without-tls in a network that you trust",
    )
