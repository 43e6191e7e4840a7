"""Where to publish and as whom, from a file in the form known to MONIT's users as
``amq_broker.json``.

STOMP: ``{"username", "password", "producer", "topic", "host_and_ports"}``; with TLS
also ``ca`` (a file or a folder of certificates to trust; nothing else is trusted), and
``cert`` and ``key`` where the broker requires a client certificate. ``host`` and
``port`` may stand for ``host_and_ports``, and ``ckey`` for ``key``: files of CMS jobs
have them. HTTP: ``{"username", "password", "url"}``; the producer is the path of
``url``. ``name`` identifies the destination whatever its addresses are. A file that
others than its owner can use is refused.
"""

from __future__ import annotations

import re
import ssl
from pathlib import Path
from typing import Annotated, Any, Final, TypeVar

import msgspec

from cmsspark.base.errors import NotAllowed, SettingsError
from cmsspark.settings.http_client import LOOPBACK, HttpAddress
from cmsspark.settings.secrets import basic_credentials, read_private, safe_text, tls_context

_DESTINATION: Final = re.compile(r"/(?:queue|topic)/[A-Za-z0-9._>*-]+")
_PRODUCER: Final = re.compile(r"[A-Za-z0-9._-]+")
_ADDRESS: Final = re.compile(r"(?P<host>[A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\]):(?P<port>[0-9]{1,5})")

Text = Annotated[str, msgspec.Meta(min_length=1)]


class _File(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What the files of both kinds hold; values are checked further when they are used."""

    username: Text | None = None
    password: Text | None = None
    producer: Text | None = None
    topic: Text | None = None
    host_and_ports: str | list[Any] | None = None
    host: Text | None = None
    port: Text | int | None = None
    url: Text | None = None
    ca: Text | None = None
    cert: Text | None = None
    key: Text | None = None
    ckey: Text | None = None
    name: Text | None = None
    type: Text | None = None
    version: Text = "1"

    def files(self, folder: Path) -> dict[str, Path]:
        """Return the files named, as absolute paths; relative ones start at the
        credentials file's folder.
        """
        named = {"ca": self.ca, "cert": self.cert, "key": self.key or self.ckey}
        return {
            name: (folder / value).absolute() for name, value in named.items() if value is not None
        }


class Broker(msgspec.Struct, frozen=True):
    """A STOMP broker and a login. Its text form shows no secret."""

    addresses: tuple[tuple[str, int], ...]
    destination: str
    producer: str | None = None
    type: str | None = None
    version: str = "1"
    username: str | None = None
    password: str | None = None
    ca: Path | None = None
    cert: Path | None = None
    key: Path | None = None
    name: str | None = None

    def __repr__(self) -> str:
        return f"<Broker {self.where}>"

    @property
    def where(self) -> str:
        """The destination for people."""
        scheme = "stomp+ssl" if self.is_secure else "stomp"
        return f"{scheme}://{','.join(f'{host}:{port}' for host, port in self.addresses)} {self.destination}"

    @property
    def is_secure(self) -> bool:
        """Whether the connection uses TLS."""
        return self.ca is not None or self.cert is not None

    @property
    def exposed_host(self) -> str | None:
        """The first host that is sent the password without TLS, other than this host;
        None if there is none.
        """
        if self.is_secure or self.password is None:
            return None
        return next((host for host, _ in self.addresses if host not in LOOPBACK), None)

    def safe_text(self, text: str) -> str:
        """Make a broker\'s text safe for terminals and logs, without the secrets of the login."""
        return safe_text(text, *_secrets(self.username, self.password))

    def tls(self) -> ssl.SSLContext | None:
        """Return the TLS context, or None without TLS. Raises as
        :func:`cmsspark.settings.secrets.tls_context`.
        """
        return tls_context(self.ca, self.cert, self.key) if self.is_secure else None


class Endpoint(HttpAddress, frozen=True, kw_only=True):
    """An HTTP address that accepts JSON documents, and a login."""

    producer: str
    type: str | None = None
    name: str | None = None


def _secrets(username: str | None, password: str | None) -> tuple[str, ...]:
    """Return what must not show, the longest first: the Basic form holds both others."""
    return tuple(filter(None, (basic_credentials(username, password), password, username)))


def read_broker(path: Path) -> Broker:
    """Return the broker of an ``amq_broker.json`` file.

    Raises NotAllowed (77) when group or others can use it, SettingsError (78) with file
    and line for what is missing, unknown or wrong; no message holds a value of the
    file.
    """
    file, source = _read(path)
    if file.url is not None:
        raise source.error(
            "the file names no broker in host_and_ports", "`url`, which is for --sink http", "url"
        )
    if not _DESTINATION.fullmatch(file.topic or ""):
        # A broker accepts any other destination silently, and nobody ever reads from there.
        raise source.error(
            "topic does not begin with /topic/ or /queue/, or has blanks",
            "something else",
            "topic",
        )
    return Broker(
        addresses=_addresses(file, source),
        destination=str(file.topic),
        producer=file.producer,
        type=file.type,
        version=file.version,
        username=file.username,
        password=file.password,
        name=file.name,
        **file.files(path.parent),
    )


def read_endpoint(path: Path) -> Endpoint:
    """Return the HTTP address of a credentials file: its ``url``, or
    ``https://<host_and_ports>/<producer>``.

    Raises as :func:`read_broker`.
    """
    file, source = _read(path)
    url = file.url or _build_url(file, source)
    try:
        address = HttpAddress.from_url(url)
    except ValueError:
        form = "url is not https://host:port/producer, without user, `?` and `#`"
        raise source.error(form, "something else", "url") from None
    last = address.path.rpartition("/")[2]
    if file.producer is not None and last and file.producer != last:
        raise source.error(
            "the last part of url's path is not the `producer`", "two names", "producer"
        )
    producer = file.producer or last
    if not _PRODUCER.fullmatch(producer):
        raise source.error(
            "the producer, the last part of url's path, has other characters than letters, digits, `.`, `_`, `-`",
            "something else",
            "url",
        )
    if address.is_exposed:
        raise source.error(
            "url does not begin with https:// (http:// is for this host only)",
            "a password would be sent unencrypted",
            "url",
        )
    return Endpoint(
        host=address.host,
        port=address.port,
        path=address.path if last else f"{address.path.rstrip('/')}/{producer}",
        is_secure=address.is_secure,
        authorization=None
        if file.password is None
        else f"Basic {basic_credentials(file.username, file.password)}",
        secrets=_secrets(file.username, file.password),
        producer=producer,
        type=file.type,
        name=file.name,
        **file.files(path.parent),
    )


def _build_url(file: _File, source: CredentialsSource) -> str:
    ((host, port), *more) = _addresses(file, source)
    if more or file.producer is None:
        raise source.error(
            "the file names no `url`, nor one host:port and a `producer`",
            "several, or no `producer`",
            "host_and_ports",
        )
    return f"https://[{host}]:{port}" if ":" in host else f"https://{host}:{port}"


def _read(path: Path) -> tuple[_File, CredentialsSource]:
    file, source = read_credentials_file(path, _File, "etc/amq_broker.example.json")
    if file.password is not None and file.username is None:
        raise source.error("the password has no `username`", "a `password` alone", "password")
    if file.key is not None and file.ckey is not None:
        raise source.error("the client's key is named twice", "both `key` and `ckey`", "ckey")
    return file, source


def _addresses(file: _File, source: CredentialsSource) -> tuple[tuple[str, int], ...]:
    value = file.host_and_ports
    if file.host is not None:
        if value is not None:
            raise source.error(
                "the broker is named twice", "both `host` and `host_and_ports`", "host"
            )
        is_ipv6 = ":" in file.host and not file.host.startswith("[")
        value = [[f"[{file.host}]" if is_ipv6 else file.host, file.port]]
    parts = value.split(",") if isinstance(value, str) else value or []
    result = []
    for part in parts:
        if isinstance(part, list) and len(part) == 2:
            part = f"{part[0]}:{part[1]}"
        match = _ADDRESS.fullmatch(part.strip()) if isinstance(part, str) else None
        if match is None or not 0 < int(match["port"]) < 65_536:
            key = "host" if file.host is not None else "host_and_ports"
            rule = "host_and_ports is not host:port, or several separated by commas"
            raise source.error(rule, "something else", key)
        result.append((match["host"].strip("[]"), int(match["port"])))
    if not result:
        raise source.error("host_and_ports names no host:port", "none", "host_and_ports")
    return tuple(result)


_T = TypeVar("_T")


class CredentialsSource:
    """The file that an error is about: it knows the line of each key."""

    def __init__(self, path: Path, content: bytes, example: str) -> None:
        """``example``: a file that shows the form."""
        self.path = path
        self.content = content
        self.example = example

    def error(self, problem: str, found: str, key: str | None = None) -> SettingsError:
        """Return an error about ``key``. ``found`` never holds a value."""
        match = re.search(rb'"%s"\s*:' % re.escape(key.encode()), self.content) if key else None
        return self.error_at(problem, found, match.start() if match else None)

    def error_at(self, problem: str, found: str, byte: int | None) -> SettingsError:
        """Return an error about what begins at ``byte``."""
        line = None if byte is None else self.content.count(b"\n", 0, byte) + 1
        return SettingsError(
            problem,
            where=self.path if line is None else f"{self.path}, line {line}",
            found=found,
            next_step=f"{self.example} shows the form of a credentials file",
        )


def read_credentials_file(
    path: Path, kind: type[_T], example: str
) -> tuple[_T, CredentialsSource]:
    """Return the content of a private JSON file as a ``kind``, and the source for
    further errors about it.

    Raises NotAllowed (77) when group or others can use the file, SettingsError (78)
    with file and line for what is unknown or of another type.
    """
    try:
        content = read_private(path)
    except FileNotFoundError:
        raise SettingsError(
            "the credentials file does not exist",
            where=path,
            found="no file of that name",
            next_step=f"correct the path; {example} shows the form of a credentials file",
        ) from None
    except OSError as error:
        raise NotAllowed(
            "the credentials file cannot be read", where=path, found=error.strerror
        ) from None
    source = CredentialsSource(path, content, example)
    try:
        return msgspec.json.decode(content, type=kind), source
    except msgspec.ValidationError as error:
        # Msgspec's message, which names keys and types and no value, as an error with
        # its line.
        message = str(error)
        key = re.search(r"unknown field `([^`]*)`|`\$\.(\w+)", message)
        named = (key[1] or key[2]) if key else None
        problem = "the keys or types of the credentials file are not the expected ones"
        raise source.error(problem, message, named) from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        at = re.search(r"\(byte (\d+)\)", str(error))
        raise source.error_at(
            "the file is not one JSON object", "no valid JSON", int(at[1]) if at else None
        ) from None
