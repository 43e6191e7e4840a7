"""Where to publish and as whom, from a file in the form that MONIT's users know as ``amq_broker.json``.

STOMP: ``{"username", "password", "producer", "topic", "host_and_ports"}``; with TLS also ``ca`` (a file or a folder of
certificates that are trusted; there is no other trust), and ``cert`` and ``key`` where the broker wants a client
certificate. HTTP: ``{"username", "password", "url"}``, the producer being the path of ``url``. A file that others than
its owner can read is refused.
"""

from __future__ import annotations

import base64
import json
import os
import re
import ssl
import stat
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

from cmsspark.errors import NotAllowed, SettingsError

_KEYS: Final = frozenset(
    ("username", "password", "producer", "topic", "host_and_ports", "ca", "cert", "key", "type", "version")
)
_HTTP_KEYS: Final = frozenset(
    ("username", "password", "producer", "url", "host_and_ports", "ca", "cert", "key", "type", "topic", "version")
)
_TEXTS: Final = ("username", "password", "producer", "topic", "url", "ca", "cert", "key", "type", "version")
_DESTINATION: Final = re.compile(r"/(?:queue|topic)/[A-Za-z0-9._>*-]+")
_URL: Final = re.compile(
    r"(?P<scheme>https?)://(?:[A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\])(?::(?P<port>[0-9]{1,5}))?(?P<path>(?:/[A-Za-z0-9._~-]*)*)"
)
_PRODUCER: Final = re.compile(r"[A-Za-z0-9._-]+")
_LOOPBACK: Final = ("localhost", "127.0.0.1", "::1")
_ADDRESS: Final = re.compile(r"(?P<host>[A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\]):(?P<port>[0-9]{1,5})")


@dataclass(frozen=True)
class Broker:
    """Where to publish, and as whom. Its text form shows no secret."""

    addresses: tuple[tuple[str, int], ...]
    destination: str
    producer: str | None = None
    type: str | None = None
    version: str = "1"
    username: str | None = field(default=None, repr=False)
    password: str | None = field(default=None, repr=False)
    ca: Path | None = None
    cert: Path | None = field(default=None, repr=False)
    key: Path | None = field(default=None, repr=False)

    @property
    def where(self) -> str:
        """The destination for people."""
        scheme = "stomp+ssl" if self.ca else "stomp"
        return f"{scheme}://{','.join(f'{host}:{port}' for host, port in self.addresses)} {self.destination}"

    def without_secrets(self, text: str) -> str:
        """``text``, for example a broker's answer, with the user name and the password blanked."""
        return _blanked(text, self.username, self.password)

    def tls(self) -> ssl.SSLContext | None:
        """The TLS context: only ``ca`` is trusted, names are checked; None without TLS.

        Raises SettingsError (78) for files that are missing or no certificates, NotAllowed (77) for an open key.
        """
        return None if self.ca is None else _tls_context(self.ca, self.cert, self.key)


@dataclass(frozen=True)
class Endpoint:
    """An HTTP address that takes JSON documents, and as whom. Its text form shows no secret."""

    host: str
    port: int
    path: str
    is_secure: bool
    producer: str
    type: str | None = None
    username: str | None = field(default=None, repr=False)
    password: str | None = field(default=None, repr=False)
    ca: Path | None = None
    cert: Path | None = field(default=None, repr=False)
    key: Path | None = field(default=None, repr=False)

    @property
    def authority(self) -> str:
        """``host:port`` as it stands in URLs."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @property
    def where(self) -> str:
        """The address for people."""
        return f"{'https' if self.is_secure else 'http'}://{self.authority}{self.path}"

    @property
    def authorization(self) -> str | None:
        """The header of that name, where there is a password."""
        if self.password is None:
            return None
        return f"Basic {_coded(self.username, self.password)}"

    def without_secrets(self, text: str) -> str:
        """``text``, for example a server's answer, with user name, password and their coded form blanked."""
        return _blanked(text, self.username, self.password)

    def tls(self) -> ssl.SSLContext | None:
        """The TLS context: ``ca`` is trusted, or what the system trusts where there is none. Raises as Broker's."""
        return _tls_context(self.ca, self.cert, self.key) if self.is_secure else None


def _coded(username: str | None, password: str | None) -> str:
    """The two as HTTP's Basic scheme writes them."""
    return base64.b64encode(f"{username}:{password}".encode()).decode()


def _blanked(text: str, username: str | None, password: str | None) -> str:
    for secret in (_coded(username, password), password, username):
        if secret:
            text = text.replace(secret, "***")
    return text


def _tls_context(ca: Path | None, cert: Path | None, key: Path | None) -> ssl.SSLContext:
    try:
        where = {} if ca is None else {"capath": str(ca)} if ca.is_dir() else {"cafile": str(ca)}
        context = ssl.create_default_context(ssl.Purpose.SERVER_AUTH, **where)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        if cert is not None:
            _refuse_open(key or cert)
            context.load_cert_chain(cert, key, password=_no_pass_phrase)
    except ssl.SSLError as error:
        raise SettingsError("certificates in PEM form are wanted", found=error.reason or str(error)) from None
    except OSError as error:
        raise SettingsError("a certificate file cannot be read", where=error.filename, found=error.strerror) from None
    return context


def _no_pass_phrase() -> str:
    # Without this OpenSSL asks the terminal for it, and waits there without end.
    raise SettingsError("the client's key is wanted without a pass phrase", found="one that is encrypted")


def read_broker(path: Path) -> Broker:
    """The broker of an ``amq_broker.json`` file.

    Raises NotAllowed (77) when group or others can read it, SettingsError (78) for what is missing, unknown or of
    another form; no message carries a value of the file.
    """
    loaded = _loaded(path, _KEYS)
    if "url" in loaded:
        raise _wrong(path, "a broker is named by host_and_ports", "`url`, which is for --sink http")
    return _broker(loaded, path)


def read_endpoint(path: Path) -> Endpoint:
    """The HTTP address of a credentials file: its ``url``, or ``https://<host_and_ports>/<producer>``.

    Raises as :func:`read_broker` does.
    """
    loaded = _loaded(path, _HTTP_KEYS)
    url, producer = loaded.get("url"), loaded.get("producer")
    if url is None:
        ((host, port), *more) = _addresses(loaded.get("host_and_ports"), path)
        if more or producer is None:
            raise _wrong(path, "`url`, or one host:port and a `producer`", "several, or no `producer`")
        url = f"https://[{host}]:{port}" if ":" in host else f"https://{host}:{port}"
    match = _URL.fullmatch(url)
    if match is None or not 0 < int(match["port"] or 443) < 65_536:
        raise _wrong(path, "url is https://host:port/producer, without user, `?` and `#`", "another form")
    named = match["path"].rpartition("/")[2]
    if producer is not None and named and producer != named:
        raise _wrong(path, "the last part of url's path is the producer", "another than `producer`")
    if not _PRODUCER.fullmatch(producer or named):
        raise _wrong(
            path, "the producer, the last part of url's path, is letters, digits, `.`, `_`, `-`", "another form"
        )
    host = str(urlsplit(url).hostname)
    secure = match["scheme"] == "https"
    if not secure and host not in _LOOPBACK:
        raise _wrong(path, "url begins with https:// (http:// only on this host)", "a password would go in the open")
    return Endpoint(
        host=host,
        port=int(match["port"] or (443 if secure else 80)),
        path=match["path"] if named else f"{match['path'].rstrip('/')}/{producer}",
        is_secure=secure,
        producer=str(producer or named),
        type=loaded.get("type"),
        username=loaded.get("username"),
        password=loaded.get("password"),
        **_files(loaded, path),
    )


def _loaded(path: Path, known: frozenset[str]) -> dict[str, Any]:
    try:
        _refuse_open(path)
        loaded = json.loads(path.read_bytes())
    except FileNotFoundError:
        raise SettingsError(
            "the broker's credentials file is wanted", where=path, found="no file of that name"
        ) from None
    except OSError as error:
        raise NotAllowed("the broker's credentials file cannot be read", where=path, found=error.strerror) from None
    except ValueError:
        # The decoder's own message may quote the content.
        raise _wrong(path, "the file is one JSON object", "something else") from None
    if not isinstance(loaded, dict):
        raise _wrong(path, "the file is one JSON object", f"a {type(loaded).__name__}")
    unknown = sorted(str(key) for key in loaded.keys() - known - {"url"})
    if unknown:
        raise _wrong(path, "only known keys stand in it", f"also {', '.join(unknown)}")
    for name in _TEXTS:
        if name in loaded and not (isinstance(loaded[name], str) and loaded[name]):
            raise _wrong(path, f"{name} is a text", f"a {type(loaded[name]).__name__}, or an empty text")
    if "cert" in loaded and "ca" not in loaded and "url" not in loaded:
        raise _wrong(path, "a client certificate needs `ca`: whom to trust", "no `ca`")
    if ("password" in loaded) > ("username" in loaded):
        raise _wrong(path, "a password needs a `username`", "no `username`")
    return loaded


def _broker(loaded: dict[str, Any], path: Path) -> Broker:
    topic = loaded.get("topic", "")
    if not _DESTINATION.fullmatch(topic):
        # A broker takes any other destination silently, and nobody ever reads from there.
        raise _wrong(path, "topic begins with /topic/ or /queue/ and has no blanks", "another form")
    return Broker(
        addresses=_addresses(loaded.get("host_and_ports"), path),
        destination=topic,
        producer=loaded.get("producer"),
        type=loaded.get("type"),
        version=loaded.get("version", "1"),
        username=loaded.get("username"),
        password=loaded.get("password"),
        **_files(loaded, path),
    )


def _files(loaded: dict[str, Any], path: Path) -> dict[str, Path]:
    """The files that are named, relative ones beside the credentials file."""
    return {name: (path.parent / loaded[name]).absolute() for name in ("ca", "cert", "key") if name in loaded}


def _addresses(given: Any, path: Path) -> tuple[tuple[str, int], ...]:
    parts = given.split(",") if isinstance(given, str) else given
    result = []
    for part in parts if isinstance(parts, list) else []:
        if isinstance(part, list) and len(part) == 2:
            part = f"{part[0]}:{part[1]}"
        match = _ADDRESS.fullmatch(part.strip()) if isinstance(part, str) else None
        if match is None or not 0 < int(match["port"]) < 65_536:
            raise _wrong(path, "host_and_ports is host:port, several of them with commas between", "another form")
        result.append((match["host"].strip("[]"), int(match["port"])))
    if not result:
        raise _wrong(path, "host_and_ports names at least one host:port", "none")
    return tuple(result)


def _refuse_open(path: Path) -> None:
    mode = os.stat(path).st_mode
    if stat.S_IMODE(mode) & 0o077:
        raise NotAllowed(
            "a file with credentials is for its owner alone",
            where=path,
            found=f"mode {stat.S_IMODE(mode):04o}: group or others can use it",
            next_step=f"chmod 600 {path}",
        )


def _wrong(path: Path, wanted: str, found: str) -> SettingsError:
    return SettingsError(
        wanted, where=path, found=found, next_step="etc/amq_broker.example.json shows the form of a credentials file"
    )
