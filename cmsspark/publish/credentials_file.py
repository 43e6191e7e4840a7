"""Files with credentials: private JSON objects, read into a struct; errors name file and line and hold no value."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TypeVar

import msgspec

from cmsspark.base.errors import NotAllowed, SettingsError
from cmsspark.settings.secrets import read_private

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


def read_credentials_file(path: Path, kind: type[_T], example: str) -> tuple[_T, CredentialsSource]:
    """Return the content of a private JSON file as a ``kind``, and the source for further errors about it.

    Raises NotAllowed (77) when group or others can use the file, SettingsError (78) with file and line for what is
    unknown or of another type.
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
        raise NotAllowed("the credentials file cannot be read", where=path, found=error.strerror) from None
    source = CredentialsSource(path, content, example)
    try:
        return msgspec.json.decode(content, type=kind), source
    except msgspec.ValidationError as error:
        raise _invalid(str(error), source) from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        at = re.search(r"\(byte (\d+)\)", str(error))
        raise source.error_at("the file holds one JSON object", "no valid JSON", int(at[1]) if at else None) from None


def _invalid(message: str, source: CredentialsSource) -> SettingsError:
    """msgspec's message, which names keys and types and no value, as an error with its line."""
    key = re.search(r"unknown field `([^`]*)`|`\$\.(\w+)", message)
    named = (key[1] or key[2]) if key else None
    problem = "the file holds one JSON object of known keys, each a text"
    return source.error(problem, message, named)
