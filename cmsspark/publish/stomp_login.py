"""Logging in to a STOMP broker: the first of its addresses that answers."""

from __future__ import annotations

import re
import socket
import ssl
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from cmsspark.base.clock import Clock
from cmsspark.base.sockets import ConnectionLost, addresses
from cmsspark.publish.credentials import Broker
from cmsspark.publish.sink import ForbiddenError, RetryableError
from cmsspark.publish.stomp_connection import NO_STOMP, StompConnection, connect_stomp

#: Error texts that mean wrong credentials or rights.
NOT_ALLOWED: Final = re.compile(
    r"password|credential|authenti|authori[sz]|security ?exception|access denied|not permitted|login",
    re.IGNORECASE,
)


@dataclass(frozen=True)
class StompTimeouts:
    """Deadlines in seconds. ``connect``: each address with its TLS handshake;
    ``login``: the answer to CONNECT.

    ``stall``: how long a broker that shows life may accept nothing, or owe a receipt.
    ``probe``: when to ask it whether it is only slow. ``heartbeat``: the interval
    between heartbeats.
    """

    connect: float = 5.0
    login: float = 10.0
    stall: float = 300.0
    probe: float = 10.0
    heartbeat: float = 4.0


class StompConnector:
    """Opens connections to ``broker`` and remembers which addresses failed."""

    def __init__(
        self, broker: Broker, timeouts: StompTimeouts, clock: Clock, log: Callable[[str], None]
    ) -> None:
        self._broker = broker
        self._timeouts = timeouts
        self._clock = clock
        self._log = log
        self._failed: dict[tuple[Any, ...], float] = {}
        self._peer: tuple[str, int, tuple[Any, ...], ssl.SSLContext | None] | None = None

    def open(self) -> StompConnection:
        """Connect and log in at the first address that answers; those that failed
        recently are tried last.

        Raises RetryableError with the reason of each address, NotAllowed (77) where a
        broker rejects the login.
        """
        context = self._broker.tls()
        reasons: list[str] = []
        for host, family, address in self._candidates(reasons):
            try:
                connection = self._logged_in(host, family, address, context)
            except ConnectionLost as error:
                if error.forbidden:
                    raise not_allowed(error.reason, f"{host}:{address[1]}") from None
                self._failed[address] = self._clock.monotonic()
                reasons.append(f"{address[0]}:{address[1]}: {error.reason}")
                continue
            self._failed.pop(address, None)
            self._peer = (host, family, address, context)
            return connection
        raise RetryableError(f"could not connect to any broker: {'; '.join(reasons)}")

    def open_standby(self, connection: StompConnection) -> StompConnection:
        """Return a second connection to the address of ``connection``, which
        :meth:`open` returned. Raises as that.
        """
        assert self._peer is not None
        return self._logged_in(*self._peer, standby=connection)

    def _candidates(self, reasons: list[str]) -> list[tuple[str, int, tuple[Any, ...]]]:
        """Return (name, family, address) of every address behind every name: those that
        worked first, IPv4 first.
        """
        candidates: list[tuple[str, int, tuple[Any, ...]]] = []
        for host, port in self._broker.addresses:
            try:
                candidates.extend(
                    (host, family, address) for family, address in addresses(host, port)
                )
            except ConnectionLost as error:
                reasons.append(error.reason)
        return sorted(
            candidates,
            key=lambda candidate: (
                self._failed.get(candidate[2], -1.0),
                candidate[1] != socket.AF_INET,
            ),
        )

    def _logged_in(
        self,
        host: str,
        family: int,
        address: tuple[Any, ...],
        context: ssl.SSLContext | None,
        standby: StompConnection | None = None,
    ) -> StompConnection:
        """Return a connection after a successful login."""
        connection = connect_stomp(
            host, address, family, context, self._timeouts.connect, self._clock, self._log
        )
        connection.standby = standby
        self._log_in(connection)
        return connection

    def _log_in(self, connection: StompConnection) -> None:
        from stomp.protocol import Protocol12

        interval = int(self._timeouts.heartbeat * 1000)
        try:
            connection.protocol = Protocol12(connection, heartbeats=(0, 0))
            connection.protocol.connect(
                self._broker.username,
                self._broker.password,
                headers={"heart-beat": f"{interval},{interval}"},
            )
            connection.flush(self._timeouts.login)
            frame = connection.receive(self._timeouts.login)
            if frame is None:
                raise ConnectionLost(
                    f"it accepts connections and stays silent ({self._timeouts.login:.0f} s)"
                )
            if frame.cmd not in ("CONNECTED", "ERROR"):
                raise ConnectionLost(NO_STOMP)
            if frame.cmd == "ERROR":
                reason = error_text(frame, self._broker)
                if NOT_ALLOWED.search(reason):
                    host, port = connection.current_host_and_port
                    raise not_allowed(reason, f"{host}:{port}")
                raise ConnectionLost(reason)
            connection.agree_heartbeats(
                self._timeouts.heartbeat, frame.headers.get("heart-beat", "0,0")
            )
        except BaseException:
            connection.close()
            raise


def error_text(frame: Any, broker: Broker) -> str:
    """Return the reason in an ERROR frame, in one line without secrets and control characters."""
    body = (
        frame.body.decode("utf-8", errors="replace")
        if isinstance(frame.body, bytes)
        else str(frame.body or "")
    )
    first = body.strip().splitlines()[0] if body.strip() else ""
    text = str(frame.headers.get("message") or first or "an error without a message")
    return broker.safe_text(text)


def not_allowed(reason: str, where: str, *, in_doubt: bool = False) -> ForbiddenError:
    """Return the error for wrong credentials or rights; ``reason`` holds no secret."""
    return ForbiddenError(
        "the broker does not let us publish",
        where=where,
        found=reason,
        next_step="check user name, password, certificates and topic in the credentials file",
        in_doubt=in_doubt,
    )
