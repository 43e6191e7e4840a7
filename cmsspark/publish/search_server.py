"""The OpenSearch that documents end in, or a proxy to it such as Grafana's: its address
and a login.

The login is in a private JSON file with one of ``token`` (sent as ``Bearer``),
``api_key`` (``ApiKey``) or ``username`` and ``password``; ``ca``, ``cert`` and ``key``
as in the credentials of brokers. A ``url`` in it is the default address, and the only
host that the login is sent to.
"""

from __future__ import annotations

import re
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Final

import msgspec

from cmsspark.base.errors import NotAllowed, UsageError
from cmsspark.publish.credentials import CredentialsSource, read_credentials_file
from cmsspark.settings.http_client import HttpAddress
from cmsspark.settings.secrets import basic_credentials, safe_text

EXAMPLE: Final = "etc/opensearch.example.json"

Text = Annotated[
    str, msgspec.Meta(min_length=1, pattern=r"^[\x21-\x7e]([\x20-\x7e]*[\x21-\x7e])?$")
]
_Name = Annotated[str, msgspec.Meta(min_length=1)]


class _LoginFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    url: Text | None = None
    token: Text | None = None
    api_key: Text | None = None
    username: _Name | None = None
    password: _Name | None = None
    ca: _Name | None = None
    cert: _Name | None = None
    key: _Name | None = None


def search_server(url: str | None, login: Path | None) -> HttpAddress:
    """Return the server at ``url``, by default the one that the file ``login`` names.

    Raises UsageError (2) for a wrong or missing address, SettingsError (78) with file
    and line for a wrong login file, NotAllowed (77) where others can read it, or where
    it would be sent unencrypted or to another host than its own.
    """
    file, source = (_LoginFile(), None) if login is None else _login(login)
    chosen = url or file.url
    if chosen is None:
        raise UsageError(
            "--verify needs the address of an OpenSearch",
            next_step=f"--verify URL, or url in {EXAMPLE}",
        )
    address = _address(chosen)
    login_host = address.host if file.url is None else _address(file.url).host
    if login_host != address.host:
        raise NotAllowed(
            "a login is sent to its own server only",
            where=login,
            found=f"a login for {login_host}, and {address.host} to verify",
            next_step="name the login file of that server with --verify-login",
        )
    authorization, secrets = _authorization(file, source)
    if authorization is not None and address.is_exposed:
        raise NotAllowed(
            "a login is never sent unencrypted to another host",
            where=f"http://{address.host}",
            next_step="use https://",
        )
    folder = Path() if login is None else login.parent
    named = {"ca": file.ca, "cert": file.cert, "key": file.key}
    files = {
        name: (folder / value).absolute() for name, value in named.items() if value is not None
    }
    path = address.path.rstrip("/")
    return msgspec.structs.replace(
        address, path=path, authorization=authorization, secrets=secrets, **files
    )


def _login(path: Path) -> tuple[_LoginFile, CredentialsSource]:
    file, source = read_credentials_file(path, _LoginFile, EXAMPLE)
    try:
        _address(file.url or "http://localhost")
    except UsageError:
        form = "url is https://host:port/prefix, without user, `?` and `#`"
        raise source.error(form, "something else", "url") from None
    return file, source


def _address(url: str) -> HttpAddress:
    with suppress(ValueError):
        address = HttpAddress.from_url(url)
        if "?" not in address.path:
            return address
    # The text is not repeated: it may hold a password.
    raise UsageError(
        "the address of an OpenSearch is https://host:port/prefix, without user, `?` and `#`"
    )


def _authorization(
    file: _LoginFile, source: CredentialsSource | None
) -> tuple[str | None, tuple[str, ...]]:
    """Return the ``Authorization`` header, and the texts that no message may hold, the
    longest first.
    """
    if source is None:
        return None, ()
    kinds = [name for name in ("token", "api_key", "password") if getattr(file, name) is not None]
    if len(kinds) > 1:
        raise source.error(
            "one login: token, api_key, or username and password", f"`{'` and `'.join(kinds)}`"
        )
    if (file.username is None) != (file.password is None):
        raise source.error(
            "a password needs a `username`, and a username a `password`", "one of them", "username"
        )
    if file.token is not None:
        return f"Bearer {file.token}", (file.token,)
    if file.api_key is not None:
        return f"ApiKey {file.api_key}", (file.api_key,)
    if file.password is not None:
        assert file.username is not None
        basic = basic_credentials(file.username, file.password)
        return f"Basic {basic}", (basic, file.password, file.username)
    return None, ()


def index_names(text: str) -> list[str]:
    """Return the indices of ``--index``: names or patterns, separated by commas. Raises
    UsageError (2) for others.
    """
    names = [name.strip() for name in text.split(",")]
    for name in names:
        # What OpenSearch allows in a name, with `*`; `-NAME` would exclude one, and `_`
        # begins what is no index.
        if not re.fullmatch(r"[a-z0-9.*][a-z0-9._*:+-]*", name) or name in (".", ".."):
            raise UsageError(
                "an index is a name or pattern of OpenSearch, several separated by commas",
                found=safe_text(name),
                next_step="for example --index monit_prod_cms-popularity_agg_data_aggregation*",
            )
    return names
