"""HDFS from Python alone, through its REST interface: what tests lay out and look at
without a JVM of their own.
"""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode


class _Manual(urllib.request.HTTPRedirectHandler):
    """A write is told where its bytes go, and they go there once."""

    def redirect_request(self, *_: Any) -> None:
        return None


@dataclass(frozen=True)
class WebHdfs:
    """One namespace; ``base`` is ``http://HOST:PORT`` of its NameNode."""

    base: str
    user: str
    #: Stands for the user where the cluster is secured.
    delegation: str | None = None

    def call(self, method: str, path: str, operation: str, **values: str) -> dict[str, Any]:
        """One operation without data."""
        request = urllib.request.Request(self._url(path, operation, **values), method=method)
        with urllib.request.urlopen(request, timeout=60) as answer:
            text = answer.read()
        return dict(json.loads(text)) if text else {}

    def make_dirs(self, path: str, mode: str = "755") -> None:
        """A folder and those above it."""
        self.call("PUT", path, "MKDIRS", permission=mode)
        self.call("PUT", path, "SETPERMISSION", permission=mode)

    def put(self, source: Path, path: str) -> None:
        """Copy a local file to ``path``, over what is there."""
        opener = urllib.request.build_opener(_Manual)
        request = urllib.request.Request(self._url(path, "CREATE", overwrite="true"), method="PUT")
        try:
            opener.open(request, timeout=60)
        except urllib.error.HTTPError as answer:
            if answer.code != 307:
                raise
            place = answer.headers["Location"]
        with source.open("rb") as stream:
            data = urllib.request.Request(place, data=stream, method="PUT")
            data.add_header("Content-Length", str(source.stat().st_size))
            data.add_header("Content-Type", "application/octet-stream")
            urllib.request.urlopen(data, timeout=600).close()

    def put_tree(self, source: Path, path: str) -> None:
        """Copy a local folder's files, each with its time."""
        for file in sorted(source.rglob("*")):
            if file.is_file():
                target = f"{path.rstrip('/')}/{file.relative_to(source)}"
                self.put(file, target)
                self.call(
                    "PUT",
                    target,
                    "SETTIMES",
                    modificationtime=str(file.stat().st_mtime_ns // 1_000_000),
                )

    def read(self, path: str) -> bytes:
        """A file's content."""
        with urllib.request.urlopen(self._url(path, "OPEN"), timeout=60) as answer:
            return bytes(answer.read())

    def names(self, path: str) -> list[str]:
        """The names in a folder; none where there is no folder."""
        try:
            found = self.call("GET", path, "LISTSTATUS")
        except urllib.error.HTTPError as error:
            if error.code == 404:
                return []
            raise
        return [entry["pathSuffix"] for entry in found["FileStatuses"]["FileStatus"]]

    def fetch_tree(self, path: str, target: Path) -> None:
        """Copy a folder to a local one."""
        target.mkdir(parents=True, exist_ok=True)
        for entry in self.call("GET", path, "LISTSTATUS")["FileStatuses"]["FileStatus"]:
            name = entry["pathSuffix"]
            if entry["type"] == "DIRECTORY":
                self.fetch_tree(f"{path}/{name}", target / name)
            else:
                (target / name).write_bytes(self.read(f"{path}/{name}"))

    def rename(self, source: str, target: str) -> None:
        """Rename a file or a folder."""
        assert self.call("PUT", source, "RENAME", destination=target)["boolean"]

    def delete(self, path: str) -> None:
        """Remove a file or a folder with all below it."""
        self.call("DELETE", path, "DELETE", recursive="true")

    def _url(self, path: str, operation: str, **values: str) -> str:
        who = {"delegation": self.delegation} if self.delegation else {"user.name": self.user}
        query = urlencode({"op": operation, **who, **values})
        return f"{self.base}/webhdfs/v1{quote(path)}?{query}"
