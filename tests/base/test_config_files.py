"""YAML files of ours: each error names file and line, the wrong value, what is wanted
and the nearest right name.
"""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
import pytest
import yaml

from cmsspark.base import config_files
from cmsspark.base.errors import SettingsError


class Mail(msgspec.Struct, forbid_unknown_fields=True):
    to: list[str]
    sender: str = msgspec.field(name="from")
    security: Literal["none", "starttls", "tls"] = "none"
    port: Annotated[int, msgspec.Meta(ge=1, le=65535)] | None = None


class Daily(msgspec.Struct, forbid_unknown_fields=True):
    days: Annotated[int, msgspec.Meta(ge=1)] = 7
    patience: float = 1
    publish: bool | None = None
    jobs: list[str] | None = None
    mail: Mail | None = None
    env: dict[str, str] | None = None
    limits: dict[str, Annotated[int, msgspec.Meta(ge=1)]] = {}


class File(msgspec.Struct, forbid_unknown_fields=True):
    store: str | None = None
    daily: Daily | None = None


MAIL = "daily:\n  mail:\n    to: [a@b]\n    from: c@d\n"


@pytest.mark.parametrize(
    ("text", "line", "wanted", "found", "next_step"),
    [
        (
            "stroe: /s\n",
            1,
            "there is no setting 'stroe'",
            None,
            "did you mean store? use one of: store, daily",
        ),
        ("x: 1\n", 1, "there is no setting 'x'", None, "use one of: store, daily"),
        ("store: 5\n", 1, "store is not a text", "5", "put it in quotes"),
        ("store: [a]\n", 1, "store is not a text", "['a']", None),
        ("daily: 3\n", 1, "daily has no `key: value` lines below it", "3", None),
        (
            "daily:\n  dais: 3\n",
            2,
            "there is no setting 'dais' under daily",
            None,
            "did you mean days? use one of: days, patience, publish, jobs, mail, env, limits",
        ),
        ("daily:\n  days: 0\n", 2, "daily.days is not a whole number >= 1", "0", None),
        ("daily:\n  days: true\n", 2, "daily.days is not a whole number", "True", None),
        ("daily:\n  days: 1.5\n", 2, "daily.days is not a whole number", "1.5", None),
        ("daily:\n  patience: long\n", 2, "daily.patience is not a number", "'long'", None),
        ("daily:\n  publish: 1\n", 2, "daily.publish is not true or false", "1", None),
        (
            "daily:\n  jobs: x\n",
            2,
            "daily.jobs is not a list",
            "'x'",
            "write it as [VALUE, …], or one `- VALUE` a line",
        ),
        (
            "daily:\n  jobs: [a, 2]\n",
            2,
            "one of daily.jobs is not a text",
            "2",
            "put it in quotes",
        ),
        ("daily:\n  mail:\n    to: [a]\n", 2, "daily.mail needs `from`", None, None),
        (
            "daily:\n  env:\n    A: a\n    B: 2\n",
            4,
            "daily.env.B is not a text",
            "2",
            "put it in quotes",
        ),
        ("daily:\n  env: {A: a, B: }\n", 2, "daily.env.B is not a text", None, None),
        (
            "daily:\n  limits:\n    x: 1\n    y: 0\n",
            4,
            "daily.limits.y is not a whole number >= 1",
            "0",
            None,
        ),
        (
            MAIL + "    security: startls\n",
            5,
            "daily.mail.security is not one of none, starttls, tls",
            "'startls'",
            "did you mean starttls? use one of: none, starttls, tls",
        ),
        (
            MAIL + "    sender: x\n",
            5,
            "there is no setting 'sender' under daily.mail",
            None,
            "use one of: to, from, security, port",
        ),
        (
            MAIL + "    port: 70000\n",
            5,
            "daily.mail.port is not a whole number <= 65535",
            "70000",
            None,
        ),
    ],
)
def test_what_is_wrong_is_reported_with_file_line_value_and_what_to_write(
    text: str, line: int, wanted: str, found: str | None, next_step: str | None
) -> None:
    file = config_files.parse(text.encode(), "my.yaml")
    with pytest.raises(SettingsError) as caught:
        file.convert(File)
    error = caught.value
    assert (error.problem, error.where) == (wanted, f"my.yaml, line {line}")
    assert (error.found, error.next_step) == (found, next_step)


def test_a_part_of_a_file_is_converted_with_its_own_lines() -> None:
    file = config_files.parse(MAIL.encode(), "my.yaml")
    assert file.convert(Mail, "daily", "mail") == Mail(["a@b"], "c@d")
    with pytest.raises(SettingsError, match=r"daily.mail needs `x`"):
        file.convert(msgspec.defstruct("Other", [("x", str)]), "daily", "mail")


def test_a_key_without_a_line_is_reported_by_the_nearest_that_has_one() -> None:
    file = config_files.parse(MAIL.encode(), "my.yaml")
    assert file.where("daily", "mail", "port") == "my.yaml, line 2"
    assert file.where("elsewhere") == "my.yaml"


def test_numbers_stay_as_written_where_they_are_texts() -> None:
    content = b"a:\n  x: 010\n  y: 0.60\n  z: 2026-01-15\n  t: true\nb: 010\n"
    file = config_files.parse(content, "my.yaml", is_text=lambda key: key[0] == "a")
    assert file.values == {"a": {"x": "010", "y": "0.60", "z": "2026-01-15", "t": True}, "b": 8}


@pytest.mark.parametrize(
    "content",
    [b"a: [1, {b: c}]\nd: '2026-01-15'\n", b"a:\n\t- b\n", b"a: {b: c\n", b"a: &x 1\nb: *x\n"],
)
def test_with_libyaml_and_without_it_a_file_is_read_alike(
    content: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    def read() -> str:
        try:
            return repr(config_files.parse(content, "x.yaml"))
        except SettingsError as error:
            return str(error)

    with_libyaml = read()
    monkeypatch.delattr(yaml, "CSafeLoader")
    assert read() == with_libyaml
