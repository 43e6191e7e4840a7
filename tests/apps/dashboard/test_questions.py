"""Questions that people ask at the pages: each is answered after at most three actions
(docs/dashboard.md).
"""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from tests.apps.dashboard.conftest import Running
from tests.apps.dashboard.stores import LAST, ORDINARY
from tests.apps.dashboard.test_browser import opened

#: Opens a page from the navigation, follows a link, chooses in a list, or types and
#: presses Enter: one action each.
Action = tuple[str, ...]


def _act(page: Any, action: Action) -> None:
    kind, *words = action
    before = page.url
    if kind == "page":
        page.get_by_role("navigation", name="Pages").get_by_role(
            "link", name=words[0], exact=True
        ).click()
    elif kind == "link":
        page.get_by_role("link", name=words[0], exact=True).first.click()
    elif kind == "choose":
        page.select_option(f"select[name={words[0]}]", words[1])
    else:
        page.fill(f"input[name={words[0]}]", words[1])
        page.press(f"input[name={words[0]}]", "Enter")
    page.wait_for_url(lambda address: address != before)
    page.wait_for_selector("main:not(.busy)")


QUESTIONS: dict[str, tuple[list[Action], Callable[[str], bool]]] = {
    "the most read dataset of the last week": (
        [("link", "Last week")],
        lambda text: str(LAST - timedelta(days=6)) in text and "Most used datasets" in text,
    ),
    "reads by site in the last week": (
        [("page", "Sites"), ("link", "Last week")],
        lambda text: "What is read at each site" in text,
    ),
    "what nobody reads at T1_US_FNAL, in TB, by age": (
        [("page", "Sites"), ("choose", "site", "T1_US_FNAL")],
        lambda text: "Unread for 4 weeks" in text,
    ),
    "this calendar month against the one before": (
        [("page", "Compare"), ("link", "2026-01 against 2025-12")],
        lambda text: "2026-01-01 to 2026-01-15 against 2025-12-01 to 2025-12-31" in text,
    ),
    "what is new since the last month": (
        [("page", "Compare"), ("choose", "show", "new")],
        lambda text: "New datasets" in text,
    ),
    "MINIAOD beside NANOAOD as shares": (
        [("choose", "by", "data_tier"), ("choose", "mode", "share")],
        lambda text: "MINIAOD" in text and "NANOAOD" in text and "by data tier" in text,
    ),
    "how many people read a dataset, and from where": (
        [("page", "Dataset"), ("type", "q", ORDINARY[0]), ("link", ORDINARY[0])],
        lambda text: "Distinct users" in text and "Where it is read" in text,
    ),
    "where a dataset lies, on disk and tape": (
        [("page", "Dataset"), ("type", "q", ORDINARY[0]), ("link", ORDINARY[0])],
        lambda text: "On disk" in text and "Replicas beside accesses" in text,
    ),
    "CPU hours by data tier": (
        [("page", "Users over time")],
        lambda text: "CPU time of the period by data tier" in text,
    ),
    "large datasets with few reads": (
        [("page", "Datasets"), ("type", "where", "disk_bytes>5TB, nacc<100000")],
        lambda text: "All datasets" in text,
    ),
    "how much lies at each site, by data tier": (
        [("page", "Data at sites")],
        lambda text: "Site × data tier" in text,
    ),
    "which days are not complete": (
        [("page", "Runs")],
        lambda text: "What needs a look" in text and "partial" in text,
    ),
}


@pytest.mark.parametrize("question", QUESTIONS)
def test_a_question_is_answered_in_three_actions(
    page: Any, dashboard: Running, question: str
) -> None:
    actions, is_answered = QUESTIONS[question]
    assert len(actions) <= 3
    opened(page, dashboard, "popularity")
    for action in actions:
        _act(page, action)
    text = re.sub(r"\s+", " ", page.inner_text("main"))
    assert is_answered(text), text[:2_000]


def test_a_period_of_a_link_takes_the_one_before_it_along(page: Any, dashboard: Running) -> None:
    """The other period of an address stayed that of the choice before."""
    opened(
        page, dashboard, "compare?from=2026-01-01&to=2026-01-03&from2=2025-12-05&to2=2025-12-06"
    )
    _act(page, ("link", "Last week"))
    assert "2026-01-09 to 2026-01-15 against 2026-01-02 to 2026-01-08" in page.inner_text("main")
