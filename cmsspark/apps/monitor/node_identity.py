"""What monitors of nodes send beside their batches: their clock and their machine, so
that mix-ups can be seen.

A node whose clock differs from the collector's is noted in the log of the run (type
``clock``), and its samples are shifted by that where they are compared with the times
of steps. Two machines that send under one name are noted, too.
"""

from __future__ import annotations

import ipaddress
import re
import ssl
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final, NamedTuple

import msgspec

from cmsspark.base.errors import SettingsError, UsageError
from cmsspark.base.text.readable import readable
from cmsspark.store.process_samples import LogEntry, ProcessSample

#: Headers of a request: the sender's clock when it sends, UTC ms; the id of its kernel's boot.
SENT_MS: Final = "Cmsspark-Sent-Ms"
BOOT: Final = "Cmsspark-Boot"
#: The type of log entries with the difference of a clock.
CLOCK: Final = "clock"
#: Smaller differences of clocks may be the time that the network takes.
_LEAST_SKEW_MS: Final = 5_000
_CLOCK_TEXT: Final = re.compile(r"([+\-]\d+) ms .*", re.DOTALL)
_SHORTEST_TOKEN: Final = 16
_NODE_NAME: Final = re.compile(r"[\w.\-]{1,100}", re.ASCII)


def check_token(token: str) -> None:
    """Raises SettingsError (78) for a token that is short, or that a header cannot carry."""
    make = "make one: python3 -c 'import secrets; print(secrets.token_urlsafe(32))'"
    if len(token) < _SHORTEST_TOKEN:
        raise SettingsError(
            f"a token has at least {_SHORTEST_TOKEN} characters",
            found=f"{len(token)} characters",
            next_step=make,
        )
    if not re.fullmatch(r"[!-~]+", token):
        raise SettingsError(
            "a token has ASCII letters, digits and signs only",
            found="blanks or other characters",
            next_step=make,
        )


def check_node_name(name: str) -> None:
    """Raises UsageError (2) for a name of a node that has other characters than those
    of host names.
    """
    if not _NODE_NAME.fullmatch(name):
        raise UsageError("--name has letters, digits and _.-, at most 100", found=repr(name[:100]))


def check_rows(rows: Iterable[msgspec.Struct]) -> None:
    """Raises UsageError for numbers that no column takes."""
    for row in rows:
        for name, value in zip(row.__struct_fields__, msgspec.structs.astuple(row), strict=True):
            if isinstance(value, int) and not -(1 << 63) <= value < 1 << 63:
                raise UsageError(
                    "a whole number has 64 bits",
                    where=name,
                    found=f"one of {value.bit_length()} bits",
                )


def boot_id() -> str:
    """Return the id of this kernel's boot, which no two machines share; nothing where
    the system has none.
    """
    with suppress(OSError):
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    return ""


class SenderHeaders(NamedTuple):
    """The sender of a request by its headers, and when these arrived by the collector's
    clock, UTC ms.
    """

    received_ms: int
    sent_ms: str | None = None
    boot: str | None = None


class SenderNotes:
    """Which machine and which clock sends for a run under the name of a host; notes for
    the run's log.
    """

    def __init__(self) -> None:
        self._boots: dict[tuple[str, str], set[str]] = {}
        self._skews: dict[tuple[str, str], int] = {}

    def entries(self, run: str, host: str, sender: SenderHeaders) -> list[LogEntry]:
        """Return what is new about the sender of a batch."""
        now_ms, sent_ms, boot = sender
        entries = []
        boots = self._boots.setdefault((run, host), set())
        if (
            boot
            and re.fullmatch(r"[0-9a-f\-]{1,40}", boot)
            and boot not in boots
            and len(boots) < 10
        ):
            boots.add(boot)
            if len(boots) > 1:
                text = f"{len(boots)} machines send as {host}: start their monitors with --name, each its own"
                entries.append(LogEntry(run, now_ms, "error", text, host))
        if sent_ms is not None and re.fullmatch(r"\d{1,15}", sent_ms, re.ASCII):
            skew = now_ms - int(sent_ms)
            before = self._skews.get((run, host), 0)
            if abs(skew) <= _LEAST_SKEW_MS:
                skew = 0
            if abs(skew - before) > _LEAST_SKEW_MS:
                self._skews[run, host] = skew
                text = f"{skew:+d} ms to add to the times of {host}: its clock differs from the collector's"
                entries.append(LogEntry(run, now_ms, CLOCK, text, host))
        return entries


def with_one_clock(
    samples: Sequence[ProcessSample], log: Iterable[LogEntry]
) -> list[ProcessSample]:
    """Return the samples in the order of times by the collector's clock, with the last
    note on each host.
    """
    skews = {}
    for entry in log:
        if entry.type == CLOCK and (match := _CLOCK_TEXT.fullmatch(entry.message)):
            skews[entry.host] = int(match[1])
    if not skews:
        return list(samples)
    shifted = [
        msgspec.structs.replace(sample, time_ms=sample.time_ms + skews.get(sample.host, 0))
        for sample in samples
    ]
    return sorted(shifted, key=lambda sample: (sample.time_ms, sample.host, sample.pid))


def server_tls(certificate: Path | None, key: Path | None) -> ssl.SSLContext | None:
    """TLS 1.2 or newer with a certificate; None without one. Raises SettingsError (78),
    NotAllowed (77).
    """
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
        raise SettingsError(
            "a certificate file cannot be read", where=certificate, found=error.strerror
        ) from None
    return context


def check_address(host: str, has_tls: bool, is_plain_allowed: bool) -> None:
    """Raises UsageError (2) for an address that others reach without TLS: the token
    would travel as it is.
    """
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
