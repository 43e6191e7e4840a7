"""What malformed records leave: private, told without values, and not for ever."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from cmsspark.run.scan_summary import DAYS_KEPT, prune, quarantine

RECORD = {
    "stream": "aaa",
    "file": "/root/logs/part-0",
    "position": 7,
    "reason": "no object",
    "raw": "Somebody",
}


def aged(file: Path, days: float) -> Path:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.touch()
    os.utime(file, (1_000_000_000 - days * 86_400,) * 2)
    return file


def test_records_are_kept_for_their_owner_and_examples_have_no_values(tmp_path: Path) -> None:
    folder = tmp_path / "quarantine" / "dbs_aaa" / "2026-01-15"
    target, examples = quarantine(
        folder, iter([RECORD, RECORD] * 4 + [{**RECORD, "stream": "eos", "position": 9}])
    )
    assert examples == {
        "aaa": ["part-0, record 7: no object"] * 5,
        "eos": ["part-0, record 9: no object"],
    }
    assert stat.S_IMODE(os.stat(target).st_mode) == 0o600
    assert {stat.S_IMODE(path.stat().st_mode) for path in (folder, *list(folder.parents)[:2])} == {
        0o700
    }
    assert Path(target).read_text().count("Somebody") == 9


def test_what_is_too_old_goes_with_its_folder_and_the_rest_stays(tmp_path: Path) -> None:
    old = aged(tmp_path / "dbs_aaa" / "2026-01-15" / "1-1.jsonl", DAYS_KEPT + 1)
    older = aged(tmp_path / "dbs_eos" / "2026-01-15" / "1-1.jsonl", DAYS_KEPT + 200)
    young = aged(tmp_path / "dbs_eos" / "2026-01-15" / "2-1.jsonl", DAYS_KEPT - 1)
    prune(tmp_path, 1_000_000_000)
    assert not old.parent.exists() and not older.exists() and young.exists()


def test_a_new_run_prunes_what_others_left(tmp_path: Path) -> None:
    old = aged(tmp_path / "quarantine" / "dbs_eos" / "2001-01-01" / "1-1.jsonl", 0)
    quarantine(tmp_path / "quarantine" / "dbs_aaa" / "2026-01-15", iter([RECORD]))
    assert not old.exists()


def test_a_link_is_removed_and_not_what_it_leads_to(tmp_path: Path) -> None:
    elsewhere = aged(tmp_path / "elsewhere.jsonl", 300)
    link = tmp_path / "q" / "dbs_aaa" / "2026-01-15" / "1-1.jsonl"
    link.parent.mkdir(parents=True)
    link.symlink_to(elsewhere)
    os.utime(link, (0, 0), follow_symlinks=False)
    prune(tmp_path / "q", 1_000_000_000)
    assert elsewhere.exists() and not link.is_symlink()
