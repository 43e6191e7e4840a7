"""Storage: what storage elements pledge, hold and may delete, what accounts lock, and
which rules are stuck, of a stored day.
"""

from __future__ import annotations

from datetime import date
from typing import Any, Final

from cmsspark.apps.dashboard import widgets as ui
from cmsspark.apps.dashboard.page import Page
from cmsspark.apps.dashboard.page_request import PageDefinition, PageRequest

_ELEMENTS: Final = (
    ui.Column("rse", "Storage element"),
    ui.Column("kind", "Kind"),
    ui.Column("static_bytes", "Pledge", "bytes", "what the site pledges"),
    ui.Column("rucio_bytes", "Used", "bytes", "all replicas, of every state and scope"),
    ui.Column("free_bytes", "Free", "bytes", "pledge less used; may be negative"),
    ui.Column("used_share", "Of pledge", "share", "used, as a share of the pledge"),
    ui.Column("locked_bytes", "Locked", "bytes", "available replicas that a rule locks"),
    ui.Column("expired_bytes", "Expired", "bytes", "what Rucio's reaper may delete by itself"),
    ui.Column("deletable_bytes", "Deletable", "bytes", "all may go together; by dataset_rses"),
    ui.Column("is_stale", "Stale", "yes", "Rucio's counters are over two days old"),
)
_ACCOUNTS: Final = (
    ui.Column("account", "Account"),
    ui.Column("rse_count", "Elements", "count"),
    ui.Column("lock_bytes", "Locked", "bytes", "as the quota counts: each rule for itself"),
    ui.Column("stuck_bytes", "Stuck", "bytes"),
    ui.Column("limit_bytes", "Quota", "bytes", "where there is a limit"),
    ui.Column("room_bytes", "Room left", "bytes", "where there is a limit; may be negative"),
)
_STUCK: Final = (
    ui.Column("event", "State"),
    ui.Column("reason", "Reason"),
    ui.Column("activity", "Activity"),
    ui.Column("rule_count", "Rules", "count"),
    ui.Column("lock_stuck", "Stuck locks", "count"),
    ui.Column("oldest_ms", "Oldest", "instant"),
)
#: People are shown together; programs and groups by their names.
_ACCOUNT: Final = (
    "CASE WHEN account_class IN ('user', 'unknown') THEN 'all of class ' || account_class"
    " ELSE account END"
)


def view(request: PageRequest) -> ui.Content:
    """Return the page of a day."""
    days, page = request.database.days("rse_usage"), Page(request)
    day = page.day("day", "Day", days[-1], (days[0], days[-1]))
    if day not in days:
        page.note(f"{day} is not stored.", "warn")
    page.section("Storage elements", *_elements(request, day))
    for title, table, columns, query, caption in (
        ("Accounts", "account_usage", _ACCOUNTS, _ACCOUNT_QUERY, "What accounts lock"),
        ("Stuck rules", "rules_day", _STUCK, _STUCK_QUERY, "Stuck and suspended rules by reason"),
    ):
        if day in request.database.days(table):
            page.section(title, request.table(table, columns, query, [day], caption))
        else:
            page.note(f"{table} of {day} is not stored: run_spark {table} --date {day}")
    return page.content("Storage", "By Rucio. Elements for tests are left out.")


_ACCOUNT_QUERY: Final = (
    f"SELECT {_ACCOUNT} AS account, count(DISTINCT rse) AS rse_count,"
    " sum(lock_bytes)::BIGINT AS lock_bytes, sum(stuck_bytes)::BIGINT AS stuck_bytes,"
    " sum(limit_bytes)::BIGINT AS limit_bytes,"
    " sum(limit_bytes - lock_bytes)::BIGINT AS room_bytes"
    " FROM account_usage WHERE day = ? GROUP BY 1 ORDER BY 3 DESC, 1"
)
_STUCK_QUERY: Final = (
    "SELECT event, reason, activity, sum(rule_count)::BIGINT AS rule_count,"
    " sum(lock_stuck)::BIGINT AS lock_stuck, min(oldest_ms) AS oldest_ms"
    " FROM rules_day WHERE day = ? AND event IN ('stuck', 'suspended')"
    " GROUP BY 1, 2, 3 ORDER BY 4 DESC, 1, 2, 3"
)


def _elements(request: PageRequest, day: date) -> list[Any]:
    """Return the figures and the table of storage elements."""
    deletable = "NULL::BIGINT"
    values: list[Any] = [day]
    if day in request.database.days("dataset_rses"):
        deletable = (
            "(SELECT sum(deletable_bytes)::BIGINT FROM dataset_rses WHERE day = ?"
            " AND dataset_rses.rse = rse_usage.rse)"
        )
        values = [day, day]
    result = request.database.query(
        "SELECT rse, kind, static_bytes, rucio_bytes, free_bytes,"
        " rucio_bytes / nullif(static_bytes, 0) AS used_share, locked_bytes, expired_bytes,"
        f" {deletable} AS deletable_bytes, is_stale"
        " FROM rse_usage WHERE day = ? AND NOT is_test"
        " ORDER BY static_bytes DESC NULLS LAST, rucio_bytes DESC NULLS LAST, rse",
        values,
    )
    figures = []
    for kind in ("disk", "tape"):
        rows = [row for row in result.rows if row[1] == kind]
        for label, column in (("pledged", 2), ("used", 3), ("locked", 6)):
            total = sum(row[column] or 0 for row in rows)
            figures.append(
                ui.Figure(f"{kind.capitalize()} {label}", ui.si(total, "B"), f"{total:,} B")
            )
    table = ui.Table("elements", _ELEMENTS, result.table, f"Storage elements on {day}")
    return [ui.Figures(figures), table]


PAGE = PageDefinition(
    "Storage",
    "What storage holds, and who locks it.",
    view,
    needs_use=False,
    needs=("rse_usage",),
    empty="No day of storage is stored. Run: run_spark rse_usage --date DAY",
)
