"""The web application: addresses to pages, downloads and files; errors become pages, too."""

from __future__ import annotations

import gzip
import json
import os
import threading
from collections.abc import Mapping
from contextlib import nullcontext
from functools import cached_property, partial
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlencode

import msgspec
from flask import Flask, Response, abort, current_app, redirect, render_template, request
from msgspec.structs import replace
from werkzeug.exceptions import HTTPException, MethodNotAllowed
from werkzeug.middleware.dispatcher import DispatcherMiddleware

from cmsspark.apps.dashboard import (
    downloads,
    registry,
    security,
    sockets,
    table_views,
    tables,
    use,
    widgets,
)
from cmsspark.apps.dashboard.page import error_content, error_facts, error_title
from cmsspark.apps.dashboard.page_request import PageRequest, Parameters
from cmsspark.apps.dashboard.pages import runs as runs_page
from cmsspark.apps.dashboard.pages import sql as sql_page
from cmsspark.apps.dashboard.query_process import Busy, QueryPool
from cmsspark.apps.dashboard.rollup_refresher import RollupRefresher
from cmsspark.apps.dashboard.security import Guard
from cmsspark.apps.dashboard.segment import ResourceExhausted, RollupsDamagedError, find_exhaustion
from cmsspark.apps.dashboard.selection import FILTERS, NO_PART
from cmsspark.base import dates
from cmsspark.base.errors import (
    CmssparkError,
    DataError,
    InputMissing,
    NotAllowed,
    NotReady,
    UsageError,
)
from cmsspark.settings.settings import Settings
from cmsspark.store.query.database import Database

#: Error class → status of the answer.
_STATUS: Final[tuple[tuple[type[CmssparkError], int], ...]] = (
    (UsageError, 400),
    (InputMissing, 404),
    (NotAllowed, 403),
    (NotReady, 503),
    (DataError, 503),
)
HOME: Final = "popularity"
#: Seconds after which a browser may ask again.
_RETRY_S: Final = "5"
#: Parameters that take several values.
_SEVERAL: Final = (*FILTERS, "columns")
#: Parameters that the navigation keeps beside the filters.
_KEPT: Final = ("from", "to", "step")
#: Answers that are packed for browsers that take them so.
_PACKED: Final = ("text/html", "text/csv", "application/json", "image/svg+xml")
#: Pages that are made at once.
_AT_ONCE: Final = threading.BoundedSemaphore(max(2, os.cpu_count() or 2))


class Services(msgspec.Struct, frozen=True, dict=True):
    """What the pages are made from. ``prefix``: the path before all addresses, behind a
    proxy; empty or ``/name``. ``settings`` name the destination of publishing.
    ``private``: the store with the partials.
    """

    refresher: RollupRefresher
    database: Database
    state_dir: Path
    guard: Guard
    prefix: str = ""
    settings: Settings | None = None
    private: Database | None = None

    @cached_property
    def queries(self) -> QueryPool:
        """What runs people's queries."""
        return QueryPool(self.database.fout)


def create_app(services: Services) -> Flask:
    """Return the WSGI application."""
    app = Flask(__name__, static_url_path="/static")
    app.jinja_options = {"autoescape": True, "trim_blocks": True, "lstrip_blocks": True}
    app.config["MAX_CONTENT_LENGTH"] = 4_096
    app.jinja_env.globals.update(
        table_rows=tables.table_rows,
        formatted=widgets.formatted,
        exact=widgets.exact,
        shown=widgets.shown,
        kind_of=lambda item: type(item).__name__.lower(),
        is_text=tables.is_text,
        chart_svg=downloads.in_page,
        chart_steps=downloads.steps,
        navigation=registry.navigation,
        prefix=services.prefix,
        version=_static_version(),
        to_second=dates.to_second,
    )
    app.jinja_env.filters["display"] = lambda text: widgets.shown("" if text == NO_PART else text)
    app.before_request(partial(_check, services))
    app.after_request(_add_headers)
    app.add_url_rule("/", view_func=lambda: redirect(f"{services.prefix}/{HOME}"), endpoint="home")
    app.add_url_rule(
        "/health", view_func=lambda: Response("ok\n", mimetype="text/plain"), endpoint="health"
    )
    app.add_url_rule(
        "/token", view_func=partial(_take_token, services), methods=["POST"], endpoint="token"
    )
    app.add_url_rule("/datasets.json", view_func=partial(_datasets, services), endpoint="datasets")
    app.add_url_rule("/words.json", view_func=partial(_words, services), endpoint="words")
    app.add_url_rule("/<page>", view_func=partial(_page, services), endpoint="page")
    report = partial(runs_page.report, services.database)
    app.add_url_rule("/runs/<job>/<interval>/<run>/report", view_func=report, endpoint="report")
    app.register_error_handler(Exception, partial(_failed, services))
    if services.prefix:
        # Addresses without the prefix are answered, too: some proxies remove it.
        app.wsgi_app = DispatcherMiddleware(app.wsgi_app, {services.prefix: app.wsgi_app})  # type: ignore[method-assign]
    return app


def _check(services: Services) -> Any:
    guard = services.guard
    if request.method == "OPTIONS":
        raise MethodNotAllowed(["GET", "HEAD"])
    if request.path == "/health":
        # It says nothing that a foreign page could not know.
        return None
    if not guard.is_host(request.headers.get("Host", "")):
        return _error_page(
            services,
            421,
            "This server is not known under that name.",
            "use --host-name NAME to allow it",
        )
    if len(request.full_path) > security.MAX_ADDRESS:
        return _error_page(
            services,
            414,
            "The address is too long.",
            f"at most {security.MAX_ADDRESS:,} characters",
        )
    if request.path.startswith("/static/") or guard.token is None:
        return None
    if request.endpoint == "token":
        return None
    token = request.args.get("token")
    if token is not None and request.method == "GET":
        if not guard.is_token(token):
            return _login_page(services, "This token is wrong.")
        parameters = {name: value for name, value in request.args.items() if name != "token"}
        return _let_in(
            services,
            services.prefix + request.path + (f"?{urlencode(parameters)}" if parameters else ""),
        )
    if guard.is_cookie(request.cookies.get(guard.cookie_name, "")):
        return None
    return _login_page(services, "")


def _let_in(services: Services, address: str) -> Any:
    answer = redirect(address, code=303)
    guard = services.guard
    answer.set_cookie(
        guard.cookie_name,
        guard.cookie_value,
        max_age=security.COOKIE_SECONDS,
        path=services.prefix or "/",
        httponly=True,
        samesite="Lax",
        secure=request.headers.get("X-Forwarded-Proto") == "https",
    )
    return answer


def _take_token(services: Services) -> Any:
    if not services.guard.is_token(request.form.get("token", "")):
        return _login_page(services, "This token is wrong.")
    return _let_in(services, f"{services.prefix}/{HOME}")


def _add_headers(answer: Response) -> Response:
    for name, value in security.HEADERS.items():
        answer.headers.setdefault(name, value)
    if request.path.startswith("/static/") and answer.status_code == 200:
        answer.headers["Cache-Control"] = "public, max-age=31536000, immutable"
    may_pack = answer.mimetype in _PACKED and not answer.direct_passthrough
    if may_pack and request.accept_encodings.quality("gzip"):
        answer.set_data(gzip.compress(answer.get_data(), 1))
        answer.headers["Content-Encoding"] = "gzip"
    if may_pack:
        answer.vary.add("Accept-Encoding")
    return answer


def _parameters() -> Parameters:
    """Return the parameters of the address. Raises UsageError (2) where one that takes
    one value has several.
    """
    doubled = [
        key
        for key, values in request.args.lists()
        if len(values) > 1 and key not in ("token", *_SEVERAL)
    ]
    if doubled:
        names = ", ".join(doubled)[:200]
        raise UsageError(
            "a parameter is given more than once; only filters and columns may be",
            found=f"more than once: {names}",
        )
    lists = {key: tuple(values) for key, values in request.args.lists() if key != "token"}
    return Parameters(
        {key: values if len(values) > 1 else values[0] for key, values in lists.items()}
    )


def _page_request(
    services: Services, name: str, parameters: Parameters | None = None
) -> PageRequest:
    """Return the request for a page, by default with the parameters of the address."""
    # A foreign page may link here, but its link must not start a query.
    is_cross_site = request.headers.get("Sec-Fetch-Site") in ("cross-site", "same-site")
    return PageRequest(
        name,
        _parameters() if parameters is None else parameters,
        services.refresher.snapshot,
        services.database,
        services.state_dir,
        services.prefix,
        is_cross_site,
        services.settings,
        services.queries,
        request.environ.get("waitress.client_disconnected", lambda: False),
        request.environ.get(sockets.VISITOR, ""),
        services.private,
    )


def _page(services: Services, page: str) -> Any:
    if page not in registry.PAGES:
        if (parameters := table_views.moved(page, request.args)) is None:
            abort(404)
        return redirect(f"{services.prefix}/table?{urlencode(parameters)}", code=301)
    definition = registry.page(page)
    page_request = _page_request(services, page)
    if definition.needs_use and not page_request.snapshot.days:
        return render_template(
            "empty.html",
            **_common(services, page),
            store=services.database.fout,
            faults=page_request.snapshot.state.faults,
        )
    if page_request.parameters.get("download") and (
        reason := request.environ.get(sockets.NO_ROOM, str)()
    ):
        raise Busy("there is no room for another download now", found=reason)
    # Pages that are made side by side finish late together.
    with _AT_ONCE if definition.is_quick else nullcontext():
        content = definition.content(page_request)
    content = downloads.arranged(content, page_request.parameters)
    download = page_request.parameters.get("download")
    if download:
        return downloads.answer(
            content, download, page_request.parameters.get("format", "csv"), page_request.file_stem
        )
    rollups = page_request.snapshot if services.refresher.is_loaded else None
    content = replace(content, notes=[*content.notes, *page_request.unread_notes(content)])
    text = render_template(
        "page.html",
        content=content,
        asked=page_request,
        rollups=rollups,
        **_common(services, page),
    )
    headers = {"Retry-After": _RETRY_S} if content.is_busy else {}
    return Response(text, 503 if content.is_busy else 200, headers)


def _common(services: Services, page: str) -> dict[str, Any]:
    parameters = {
        key: request.args.getlist(key) for key in (*_KEPT, *FILTERS) if request.args.get(key)
    }
    query = f"?{urlencode(parameters, doseq=True)}" if parameters else ""
    definition, freshness = registry.page(page), services.refresher.freshness
    return {"page": page, "definition": definition, "freshness": freshness, "kept_query": query}


def _datasets(services: Services) -> Response:
    page_request = _page_request(services, "datasets.json")
    suggestions = use.suggestions(page_request) if page_request.snapshot.days else []
    return Response(json.dumps(suggestions), mimetype="application/json")


def _words(services: Services) -> Response:
    return Response(
        json.dumps(sql_page.words(_page_request(services, "sql"))), mimetype="application/json"
    )


def _login_page(services: Services, problem: str) -> Response:
    return Response(
        render_template("login.html", problem=problem, page="", freshness=None), status=401
    )


def _error_page(
    services: Services, status: int, title: str, text: str, facts: Mapping[str, str] | None = None
) -> Response:
    is_building = status == 503 and services.refresher.freshness.is_building
    page = render_template(
        "error.html",
        title=title,
        text=text,
        facts=facts or {},
        page="",
        freshness=None,
        is_building=is_building,
    )
    return Response(page, status=status)


def _failed(services: Services, error: Exception) -> Any:
    if isinstance(error, HTTPException):
        text = {404: "There is no such page.", 405: "The pages only read."}.get(
            error.code or 500, error.name
        )
        refusal = _error_page(services, error.code or 500, text, "")
        if isinstance(error, MethodNotAllowed):
            methods = {*(error.valid_methods or ("GET", "HEAD"))} - {"OPTIONS"}
            refusal.headers["Allow"] = ", ".join(sorted(methods))
        return refusal
    if isinstance(error, RollupsDamagedError):
        services.refresher.is_damaged()
    if not isinstance(error, CmssparkError):
        error = find_exhaustion(error) or error
    if isinstance(error, ResourceExhausted):
        services.refresher.check_files()
    if isinstance(error, CmssparkError):
        status = next((code for kind, code in _STATUS if isinstance(error, kind)), 500)
        answer = _with_form(services, error, status)
        if answer is None:
            answer = _error_page(services, status, error_title(error), "", error_facts(error))
        if isinstance(error, NotReady):
            answer.headers["Retry-After"] = _RETRY_S
        return answer
    current_app.logger.error("a page failed", exc_info=error)
    return _error_page(services, 500, "This page failed: a bug in cmsspark.", type(error).__name__)


def _with_form(services: Services, error: CmssparkError, status: int) -> Response | None:
    """Return the error above the page's form, with what was chosen in it; None where
    there is no such form.
    """
    page = request.path.strip("/")
    if page not in registry.PAGES or status not in (400, 404) or request.args.get("download"):
        return None
    try:
        # The parameters of the address are wrong: the form is that of the page without them.
        page_request = _page_request(services, page, Parameters({}))
        content = error_content(registry.page(page).content(page_request), error, request.args)
    except CmssparkError:
        return None
    text = render_template(
        "page.html", content=content, asked=page_request, rollups=None, **_common(services, page)
    )
    return Response(text, status=status)


def _static_version() -> str:
    """Return a digest of the static files, which browsers keep until it changes."""
    import hashlib

    digest = hashlib.sha256()
    for path in sorted((Path(__file__).parent / "static").iterdir()):
        digest.update(path.read_bytes())
    return digest.hexdigest()[:10]
