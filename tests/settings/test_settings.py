"""Settings: where they are looked for, what they may hold, and how errors name file and line."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cmsspark.base.errors import CmssparkError, NotAllowed, SettingsError
from cmsspark.settings.settings import SettingsFile, load_settings, parse


def written(folder: Path, text: str, name: str = "cmsspark.yaml") -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / name
    file.write_text(text, encoding="utf-8")
    return file


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """An empty home and an empty working folder, and the environment that names the home."""
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    return {"HOME": str(tmp_path / "home")}


def test_without_any_file_the_xdg_folders_hold(home: dict[str, str]) -> None:
    settings = load_settings(environ=home)
    assert settings.root is None and settings.store is None and settings.origin is None
    assert settings.state_dir == Path(home["HOME"]) / ".local/state/cmsspark"
    assert settings.cache_dir == Path(home["HOME"]) / ".cache/cmsspark"


def test_xdg_variables_move_the_folders_and_relative_ones_are_ignored(
    home: dict[str, str],
) -> None:
    settings = load_settings(
        environ={**home, "XDG_STATE_HOME": "/state", "XDG_CACHE_HOME": "cache"}
    )
    assert settings.state_dir == Path("/state/cmsspark")
    assert settings.cache_dir == Path(home["HOME"]) / ".cache/cmsspark"


def test_the_option_comes_before_the_variable_before_here_before_home(
    home: dict[str, str], tmp_path: Path
) -> None:
    written(Path(home["HOME"]) / ".config/cmsspark", "store: /home")
    assert load_settings(environ=home).store == "/home"
    written(Path.cwd(), "store: /here")
    assert load_settings(environ=home).store == "/here"
    by_variable = written(tmp_path, "store: /variable", "v.yaml")
    env = {**home, "CMSSPARK_SETTINGS": str(by_variable)}
    assert load_settings(environ=env).store == "/variable"
    by_option = written(tmp_path, "store: /option", "o.yaml")
    assert load_settings(str(by_option), env).store == "/option"


def test_the_root_of_the_environment_comes_before_the_files(home: dict[str, str]) -> None:
    written(Path.cwd(), "root: /file")
    assert load_settings(environ=home).root == "/file"
    assert load_settings(environ={**home, "CMSSPARK_ROOT": "hdfs://other"}).root == "hdfs://other"


def test_folders_of_the_environment_come_before_the_files(home: dict[str, str]) -> None:
    written(Path.cwd(), "state_dir: /file\ncache_dir: /file\n")
    settings = load_settings(
        environ={**home, "CMSSPARK_STATE_DIR": ".", "CMSSPARK_CACHE_DIR": "/cache"}
    )
    assert (settings.state_dir, settings.cache_dir) == (Path.cwd(), Path("/cache"))


def test_a_named_file_that_is_not_there_is_reported(home: dict[str, str]) -> None:
    with pytest.raises(SettingsError, match="--settings"):
        load_settings("/no/such.yaml", home)
    with pytest.raises(SettingsError, match="CMSSPARK_SETTINGS"):
        load_settings(environ={**home, "CMSSPARK_SETTINGS": "/no/such.yaml"})


def test_relative_paths_start_at_the_file_and_uris_stay(
    home: dict[str, str], tmp_path: Path
) -> None:
    text = "store: out\nroot: s3a://bucket/x\nstate_dir: ~/state\ncache_dir: /cache\njars: ''\n"
    settings = load_settings(str(written(tmp_path / "etc", text)), home)
    assert settings.store == str(tmp_path / "etc/out")
    assert settings.root == "s3a://bucket/x"
    assert settings.state_dir == Path(home["HOME"]) / "state"
    assert settings.cache_dir == Path("/cache")
    assert settings.jars is None


def test_an_empty_file_and_null_values_mean_not_set(home: dict[str, str]) -> None:
    written(Path.cwd(), "root:\nspark:\n# nothing\n")
    assert load_settings(environ=home).root is None
    written(Path.cwd(), "")
    assert load_settings(environ=home).spark == {}


def test_spark_options_keep_their_spelling_and_booleans_are_lower_case(
    home: dict[str, str],
) -> None:
    written(
        Path.cwd(),
        "spark:\n  spark.a: 010\n  spark.b: yes\n  spark.c: 5g\n  spark.d: 1_000\n  spark.e: 0.60\n",
    )
    assert dict(load_settings(environ=home).spark) == {
        "spark.a": "010",
        "spark.b": "true",
        "spark.c": "5g",
        "spark.d": "1_000",
        "spark.e": "0.60",
    }


def test_a_value_knows_its_line(home: dict[str, str]) -> None:
    written(Path.cwd(), "store: /s\npublishing:\n  sink: file\n")
    settings = load_settings(environ=home)
    assert settings.where("publishing", "sink") == f"{Path.cwd()}/cmsspark.yaml, line 3"
    assert settings.where("publishing", "missing") == f"{Path.cwd()}/cmsspark.yaml, line 2"


@pytest.mark.parametrize(
    ("text", "line", "words"),
    [
        ("store: /s\nstroe: /s\n", 2, "no setting 'stroe'"),
        ("root: [1]\n", 1, "root is not a text"),
        ("store: 2026-01-15\n", 1, "store is not a text"),
        ("store: /s\nspark: 3\n", 2, "spark has"),
        ("spark:\n  executor.memory: 1\n", 2, "does not begin with `spark.`"),
        ("spark:\n  spark.a: [1, 2]\n", 2, "must be a single value"),
        ("store: /a\nstore: /b\n", 2, "must not be repeated"),
        ("sources:\n  aaa: 1\n  aaa: 2\n", 3, "must not be repeated"),
        ("root: &x /a\nstore: *x\n", 1, "must not use aliases, anchors or tags"),
        (
            "root: !!python/object/apply:os.system ['true']\n",
            1,
            "must not use aliases, anchors or tags",
        ),
        ("root: !!str /a\n", 1, "must not use aliases, anchors or tags"),
        ("- root\n", 1, "`key: value`"),
        ("store: /s\nroot: 'unclosed\n", 2, "plain YAML"),
        ("? [a]\n: b\n", 1, "not a single word"),
        ("publishing: {day: 2026-13-45}\n", 1, "plain value"),
        ("a: 1\n---\nb: 2\n", 2, "plain YAML"),
    ],
)
def test_what_is_wrong_is_named_with_file_and_line(text: str, line: int, words: str) -> None:
    with pytest.raises(SettingsError) as caught:
        parse(text.encode(), "my.yaml")
    assert words in str(caught.value)
    assert f"my.yaml, line {line}" in str(caught.value)


def test_bytes_that_are_no_utf8_are_reported() -> None:
    with pytest.raises(SettingsError, match="UTF-8"):
        parse(b"root: \xff\n", "my.yaml")


@given(
    st.binary(max_size=200)
    | st.text(max_size=200).map(lambda text: text.encode("utf-8", "replace"))
)
def test_any_bytes_give_settings_or_a_settings_error(content: bytes) -> None:
    try:
        values, _ = parse(content, "my.yaml")
    except CmssparkError as error:
        assert isinstance(error, SettingsError) and "my.yaml" in str(error)
    else:
        assert isinstance(values, SettingsFile)


def test_the_example_is_valid(home: dict[str, str]) -> None:
    example = Path(__file__).resolve().parent.parent.parent / "etc" / "cmsspark.example.yaml"
    assert load_settings(str(example), home).profile == "local"


def test_a_line_has_a_limit_which_the_file_sets_within_bounds(home: dict[str, str]) -> None:
    assert load_settings(environ=home).max_line_bytes == 64 * 1024 * 1024
    written(Path.cwd(), "max_line_bytes: 2000000")
    assert load_settings(environ=home).max_line_bytes == 2_000_000
    for wrong in ("1", "-5", "2000000000", "1.5e7", "true", "'64 MB'", "[1]"):
        written(Path.cwd(), f"root: /x\nmax_line_bytes: {wrong}")
        with pytest.raises(SettingsError, match="max_line_bytes is not a whole number") as error:
            load_settings(environ=home)
        assert "line 2" in str(error.value)


def owned_by(uid: int, mode: int = 0o100644) -> os.stat_result:
    return os.stat_result((mode, 0, 0, 1, uid, 0, 0, 0, 0, 0))


def test_a_part_is_read_as_a_whole_again_after_a_day_or_the_hours_of_the_settings(
    home: dict[str, str],
) -> None:
    assert load_settings(environ=home).recheck_hours == 24
    written(Path.cwd(), "recheck_hours: 0")
    assert load_settings(environ=home).recheck_hours == 0
    written(Path.cwd(), "recheck_hours: -1")
    with pytest.raises(SettingsError, match="recheck_hours"):
        load_settings(environ=home)


def test_a_file_of_the_current_folder_that_belongs_to_somebody_else_is_refused(
    home: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    file = written(Path.cwd(), "spark:\n  spark.driver.extraJavaOptions: -javaagent:/evil.jar\n")
    monkeypatch.setattr(os, "geteuid", lambda: 4321)
    monkeypatch.setattr(os, "fstat", lambda descriptor: owned_by(1234))
    with pytest.raises(NotAllowed, match="it belongs to user 1234") as error:
        load_settings(environ=home)
    assert error.value.exit_code == 77
    # Who names it has looked at it; one of root's is the host's.
    assert load_settings(str(file), home).spark
    assert load_settings(environ={**home, "CMSSPARK_SETTINGS": str(file)}).spark
    monkeypatch.setattr(os, "fstat", lambda descriptor: owned_by(0))
    assert load_settings(environ=home).spark


def test_a_file_of_the_current_folder_that_all_can_write_is_refused(home: dict[str, str]) -> None:
    file = written(Path.cwd(), "store: /s\n")
    file.chmod(0o666)
    with pytest.raises(NotAllowed, match="writable by all"):
        load_settings(environ=home)
    file.chmod(0o664)
    assert load_settings(environ=home).store == "/s"


def test_a_working_folder_that_was_deleted_has_no_settings(home: dict[str, str]) -> None:
    Path.cwd().rmdir()
    assert load_settings(environ=home).origin is None
