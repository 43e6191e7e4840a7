"""``cmsspark dashboard``: what it refuses, what it prints, and that it ends when it is told to."""

from __future__ import annotations

import importlib
import os
import signal
import socket
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest

from cmsspark import apps
from cmsspark.apps.dashboard.server import Options, open_server
from cmsspark.base import errors, reporting
from cmsspark.main import command
from tests.apps.dashboard import stores
from tests.apps.dashboard.stores import LAST


def run(*arguments: str) -> tuple[int, str]:
    """The exit code and the message of a call that fails."""
    try:
        code = reporting.run_click(command, "cmsspark", ["dashboard", *arguments])
        return int(code) if isinstance(code, int) else 0, ""
    except errors.CmssparkError as error:
        return int(error.exit_code), error.text()


def test_a_store_elsewhere_or_nowhere_is_refused(tmp_path: Path) -> None:
    assert run("--fout", "hdfs://a/b")[0] == 2
    code, text = run("--fout", str(tmp_path / "nothing"))
    assert code == 66 and str(tmp_path / "nothing") in text


@pytest.mark.parametrize("prefix", ["cms", "/a/../b", "/", "//x"])
def test_a_prefix_that_is_no_path_is_refused(tmp_path: Path, prefix: str) -> None:
    assert run("--fout", str(tmp_path), "--prefix", prefix)[0] == 2


def test_a_port_in_use_and_a_token_for_all_to_read_are_refused(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        code, text = run("--fout", str(tmp_path), "--port", str(taken.getsockname()[1]))
        assert code == 2 and "--port" in text
    token = tmp_path / "token"
    token.write_text("secret\n")
    token.chmod(0o644)
    assert run("--fout", str(tmp_path), "--port", "0", "--token-file", str(token))[0] == 77
    token.chmod(0o600)
    code, text = run("--fout", str(tmp_path), "--port", "0", "--token-file", str(token))
    assert code == 78 and "at least 16 characters" in text and "secret" not in text


@pytest.mark.parametrize("host", ["127.0.0.1", "0.0.0.0"])
def test_a_token_from_a_file_is_not_in_the_address(host: str, tmp_path: Path) -> None:
    stores.store_day(tmp_path / "store", LAST, stores.partial_rows(LAST, count=20))
    options = Options(host, 0, token="a-token-of-a-file-0123")
    server = open_server(
        str(tmp_path / "store"), tmp_path / "state", tmp_path / "cache", options, lambda text: None
    )
    try:
        assert "token" not in server.address
    finally:
        server.close()


def test_without_its_packages_it_names_the_extra(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The command imports the package again: both of its names are put back afterwards,
    # and what only the second import loaded goes, as its classes are others than those
    # of the first.
    monkeypatch.setattr(apps, "dashboard", importlib.import_module("cmsspark.apps.dashboard"))
    first = {name for name in sys.modules if name.startswith("cmsspark.apps.dashboard")}
    for name in first:
        monkeypatch.delitem(sys.modules, name)
    for name in ["waitress", *(name for name in sys.modules if name.startswith("waitress."))]:
        monkeypatch.setitem(sys.modules, name, None)
    code, text = run("--fout", str(tmp_path), "--port", "0")
    for name in [
        name
        for name in sys.modules
        if name.startswith("cmsspark.apps.dashboard") and name not in first
    ]:
        del sys.modules[name]
    assert code == 2 and "cmsspark[dashboard]" in text


def test_it_serves_with_a_token_where_others_reach_it_and_ends_at_sigterm(tmp_path: Path) -> None:
    stores.store_day(tmp_path / "store", LAST, stores.partial_rows(LAST, count=20))
    (tmp_path / "cmsspark.yaml").write_text(
        f"state_dir: {tmp_path}/state\ncache_dir: {tmp_path}/cache\n"
    )
    words = [
        "--fout",
        f"{tmp_path}/store",
        "--settings",
        f"{tmp_path}/cmsspark.yaml",
        "--host",
        "0.0.0.0",
        "--port",
        "0",
    ]
    call = [sys.executable, "-c", "from cmsspark.main import main; main()", "dashboard", *words]
    with subprocess.Popen(
        call, stderr=subprocess.PIPE, text=True, env={**os.environ, "TZ": "UTC"}
    ) as process:
        assert process.stderr is not None
        lines = iter(process.stderr)
        address = next(line for line in lines if line.startswith("dashboard of")).split()[-1]
        assert "?token=" in address and f"{tmp_path}" not in address
        local = address.replace("0.0.0.0", "127.0.0.1")
        with pytest.raises(urllib.error.HTTPError, match="401"):
            urllib.request.urlopen(local.partition("?")[0])
        with urllib.request.urlopen(local.partition("/popularity")[0] + "/health") as answer:
            assert answer.read() == b"ok\n"
        process.send_signal(signal.SIGTERM)
        rest = list(lines)
        assert process.wait(timeout=300) == 0
        assert rest[-1] == "ended\n", rest


#: Serves until a thread of its own sends SIGTERM, which it does as soon as the server
#: handles that signal.
SERVES = """
import os, signal, sys, threading, time
from pathlib import Path
from cmsspark.apps.dashboard.server import Options, serve

def end():
    while signal.getsignal(signal.SIGTERM) is before:
        time.sleep(0.01)
    os.kill(os.getpid(), signal.SIGTERM)

before = signal.getsignal(signal.SIGTERM)
threading.Thread(target=end, daemon=True).start()
folder = Path(sys.argv[1])
serve(str(folder), (folder / "state", folder / "cache"), Options(port=0), print, False)
print(signal.getsignal(signal.SIGTERM) is before)
"""


def test_a_server_that_has_ended_leaves_the_handler_of_sigterm_as_it_was(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", SERVES, str(tmp_path)], capture_output=True, text=True, timeout=300
    )
    assert done.stdout.splitlines()[-2:] == ["ended", "True"], done.stderr
