"""How the package grew since a revision: all lines, those of new features, and the rest.

``python -m bench.house_growth [BASE] [HEAD]`` counts the lines of ``cmsspark/`` by kind: code, docstrings, comments,
imports and blank lines. A feature is a commit that changes what users get; its lines are those that it added, less
those that it removed. The rest is the work on the house: what was merged, renamed, split and documented.
"""

from __future__ import annotations

import argparse
import ast
import subprocess
from collections import Counter
from pathlib import Path

TOP = Path(__file__).resolve().parent.parent
#: The last commit before the rooms of the house.
BASE = "dc7b915"
SUFFIXES = (".py", ".pyx", ".pxi", ".pxd")
KINDS = ("code", "docstring", "comment", "import", "blank")
#: Commits since BASE that change what users get, by what they bring.
FEATURES = {
    "jobs on dumps by processes": "0ff7a7f aa661ea 9689e4a 398de8c 74aa528",
    "daily: trouble mailed once, acknowledge, skip, metrics": "4987fce b5b3b5f 87167d4",
    "the record behind a sum beyond 64 bits, --quarantine-above": "50578bc ac3375c a16190e",
    "outboxes of a destination, outbox move": "84d9650",
    "publishing: refusals, safe texts, full disks, formats": "327f9e0 30f153c 270eba3 e8a7614 6d52a1c",
    "extends: in tables, generated document schemas": "121853e",
    "settings as structs with file, line and nearest name": "13e37c4",
    "limit of a log line, damaged and unreadable files": "b8d660c d49d45e 3e8925d 38917dc e585218 c47e136",
    "exit codes and signals": "30a889f 95bc21b 85f9d04 ed218b0 5b1ff61",
    "tables that fit the terminal": "a5a9df4 8efd139",
    "documentation site and API page": "a123531",
    "cheaper Spark days": "fda68bc 64fcb01",
}


def git(*arguments: str) -> str:
    """What a git command prints."""
    return subprocess.run(("git", "-C", str(TOP), *arguments), capture_output=True, text=True, check=True).stdout


def kinds(text: str, path: str) -> Counter[str]:
    """The lines of a file by kind; Cython's docstrings and imports count as code."""
    lines = text.splitlines()
    kind = ["code" if line.strip() else "blank" for line in lines]
    kind = ["comment" if line.lstrip().startswith("#") else of for line, of in zip(lines, kind, strict=True)]
    for node in ast.walk(ast.parse(text)) if path.endswith(".py") else ():
        if isinstance(node, ast.Import | ast.ImportFrom):
            kind[node.lineno - 1 : node.end_lineno] = ["import"] * ((node.end_lineno or 0) - node.lineno + 1)
        elif isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            first = node.body[0] if node.body else None
            if isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant):
                kind[first.lineno - 1 : first.end_lineno] = ["docstring"] * ((first.end_lineno or 0) - first.lineno + 1)
    return Counter(kind)


def lines_of(revision: str, paths: list[str]) -> Counter[str]:
    """The lines by kind of those of ``paths`` that a revision has."""
    total: Counter[str] = Counter()
    for path in git("ls-tree", "-r", "--name-only", revision, "--", *paths).split():
        if path.endswith(SUFFIXES):
            total.update(kinds(git("show", f"{revision}:{path}"), path))
    return total


def growth(before: str, after: str, paths: list[str]) -> Counter[str]:
    """By how many lines of each kind those paths grew."""
    grown = lines_of(after, paths)
    grown.subtract(lines_of(before, paths))
    return grown


def of_commit(commit: str) -> Counter[str]:
    """By how many lines of each kind a commit made the package grow."""
    paths = git("diff-tree", "-r", "--no-commit-id", "--no-renames", "--name-only", commit, "--", "cmsspark").split()
    return growth(f"{commit}^", commit, paths)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("base", nargs="?", default=BASE, help="the revision before (default: %(default)s)")
    parser.add_argument("head", nargs="?", default="HEAD", help="the revision after (default: %(default)s)")
    chosen = parser.parse_args()
    rest = growth(chosen.base, chosen.head, ["cmsspark"])
    print(f"{'lines':<62}{'all':>7}" + "".join(f"{kind:>10}" for kind in KINDS))
    rows = {"all since " + chosen.base: Counter(rest)}
    for name, commits in FEATURES.items():
        rows[name] = Counter()
        for commit in commits.split():
            rows[name].update(of_commit(commit))
        rest.subtract(rows[name])
    rows["all else"] = rest
    for name, counts in rows.items():
        print(f"{name:<62}{sum(counts.values()):>7,}" + "".join(f"{counts[kind]:>10,}" for kind in KINDS))


if __name__ == "__main__":
    main()
