"""The ``daily`` section of the settings: which jobs, how many days, what to wait for,
whom to notify.
"""

from __future__ import annotations

import base64
import os
import smtplib
import socket
import ssl
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from email.message import EmailMessage
from email.utils import formatdate, make_msgid
from pathlib import Path
from typing import Annotated, Final, Literal, TypeVar

import msgspec
from msgspec.structs import replace

from cmsspark.apps.daily.planner import POLICIES, Rules
from cmsspark.base.errors import NotAllowed, OutputError, SettingsError, UsageError
from cmsspark.base.sockets import ConnectionLost
from cmsspark.settings.http_client import LOOPBACK, HttpAddress, HttpTimeouts, fetch
from cmsspark.settings.secrets import basic_credentials, read_password, safe_text, tls_context
from cmsspark.settings.settings import Settings
from cmsspark.sources.registry import STREAMS
from cmsspark.store.day_states import DEFAULT_DAYS
from cmsspark.store.own_jobs import Job, find_job

# Alarms of ``cmsspark daily``: metrics for Prometheus, and mail on trouble.

#: Seconds that a server may take for each answer, and for all.
TIMEOUT_S: Final = 20.0
DEADLINE_S: Final = 60.0
#: The security of a connection to a mail server, and its port.
PORTS: Final[Mapping[str, int]] = {"none": 25, "starttls": 587, "tls": 465}

#: An argument of a command line, or an address, which YAML may take for a number.
Argument = str | int | float

#: name → (help, {labels as they stand in braces, or empty: value})
Metrics = Mapping[str, tuple[str, Mapping[str, float]]]


class Login(msgspec.Struct, kw_only=True, forbid_unknown_fields=True, frozen=True):
    """How to log in. The first line of ``password_file``, which is read when it is
    needed, is the password; ``ca`` is trusted instead of what the system trusts.
    """

    user: str | None = None
    password_file: str | None = None
    ca: str | None = None

    def _password(self) -> str | None:
        return read_password(Path(self.password_file)) if self.password_file else None

    @property
    def _trusted(self) -> Path | None:
        return Path(self.ca) if self.ca else None


class Mail(Login, kw_only=True, forbid_unknown_fields=True, frozen=True):
    """Where mail on trouble goes, and by which server."""

    to: Annotated[list[Argument], msgspec.Meta(min_length=1)]
    sender: Annotated[str, msgspec.Meta(min_length=1)] = msgspec.field(name="from")
    server: str = "localhost"
    port: Annotated[int, msgspec.Meta(ge=1, le=65535)] | None = None
    security: Literal[*PORTS] = "none"  # type: ignore[valid-type]  # one of the ports' names

    @property
    def where(self) -> str:
        """The server as messages name it."""
        return f"{self.server}:{self.port or PORTS[self.security]}"

    def send(self, subject: str, text: str) -> None:
        """Send one mail.

        Raises OutputError (73) where the server is not there or refuses, NotAllowed
        (77) for a wrong certificate or password and for a password file that others can
        read, SettingsError (78) for one that is not there.
        """
        message = EmailMessage()
        message["Subject"], message["From"], message["To"] = (
            subject,
            self.sender,
            ", ".join(map(str, self.to)),
        )
        message["Date"], message["Message-ID"] = (
            formatdate(),
            make_msgid(domain=socket.gethostname()),
        )
        message.set_content(text)
        password = self._password()
        try:
            port = self.port or PORTS[self.security]
            if self.security == "tls":
                context = tls_context(self._trusted)
                smtp: smtplib.SMTP = smtplib.SMTP_SSL(
                    self.server, port, timeout=TIMEOUT_S, context=context
                )
            else:
                smtp = smtplib.SMTP(self.server, port, timeout=TIMEOUT_S)
            with closing(smtp), _deadline(lambda: smtp.sock):
                if self.security == "starttls":
                    smtp.starttls(context=tls_context(self._trusted))
                if self.user and password:
                    smtp.login(self.user, password)
                smtp.send_message(message)
                # The mail was accepted: a bad end of the session does not change that.
                with suppress(OSError, smtplib.SMTPException):
                    smtp.quit()
        except (ssl.SSLCertVerificationError, smtplib.SMTPAuthenticationError) as error:
            raise NotAllowed(
                "mail cannot be sent", where=self.where, found=_error_text(error, password)
            ) from None
        except (OSError, smtplib.SMTPException) as error:
            raise OutputError(
                "mail cannot be sent", where=self.where, found=_error_text(error, password)
            ) from None


class Push(Login, kw_only=True, forbid_unknown_fields=True, frozen=True):
    """A Pushgateway that takes the metrics too; ``url`` has the group they replace:
    ``http://host/metrics/job/NAME``.
    """

    url: str

    def send(self, metrics: Metrics, *, replace: bool = True) -> None:
        """Send the metrics in place of the whole group, or only of those of the same names.

        Raises as :meth:`Mail.send`.
        """
        headers = {"Content-Type": "text/plain; version=0.0.4; charset=utf-8"}
        password = self._password()
        authorization = (
            f"Basic {basic_credentials(self.user, password)}" if self.user and password else None
        )
        server = HttpAddress.from_url(self.url, ca=self._trusted, authorization=authorization)
        timeouts = HttpTimeouts(TIMEOUT_S, TIMEOUT_S, DEADLINE_S)
        body = exposition(metrics).encode()
        try:
            answer = fetch(server, timeouts, 300, "PUT" if replace else "POST", headers, body)
        except ConnectionLost as error:
            error_class = NotAllowed if error.forbidden else OutputError
            refusal_text = safe_text(error.reason, password)
            raise error_class(
                "metrics cannot be pushed", where=self.url, found=refusal_text
            ) from None
        if not answer.is_success:
            error_class = NotAllowed if answer.status in (401, 403) else OutputError
            text = f"{answer.status} {answer.reason} {answer.body.decode('utf-8', 'replace')}"
            refusal_text = safe_text(text, password, limit=200)
            raise error_class("metrics cannot be pushed", where=self.url, found=refusal_text)


def write_metrics(path: Path, metrics: Metrics, other_lines: str = "") -> None:
    """Write metrics for Prometheus's textfile collector, whole or not at all. Raises
    OutputError (73).

    ``other_lines``: what the file has beside them.
    """
    aside = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        aside.write_text(exposition(metrics) + other_lines, encoding="utf-8")
        aside.replace(path)
    except OSError as error:
        with suppress(OSError):
            aside.unlink()
        raise OutputError("metrics cannot be written", where=path, found=error.strerror) from None


def exposition(metrics: Metrics) -> str:
    """Metrics in Prometheus's text form."""
    lines = []
    for name, (about, values) in metrics.items():
        lines += [f"# HELP {name} {about}", f"# TYPE {name} gauge"]
        lines += [
            f"{name}{f'{{{labels}}}' if labels else ''} {value!r}"
            for labels, value in values.items()
        ]
    return "\n".join(lines) + "\n"


@contextmanager
def _deadline(sock: Callable[[], socket.socket | None]) -> Iterator[None]:
    """Shut the connection down at the deadline: a server that sends a byte at a time
    never reaches a timeout.
    """

    def cut() -> None:
        if (connected := sock()) is not None:
            with suppress(OSError):
                connected.shutdown(socket.SHUT_RDWR)

    timer = threading.Timer(DEADLINE_S, cut)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def _error_text(error: Exception, password: str | None) -> str:
    """Return the error in a line, without the password in any of its encodings."""
    text = str(error) or type(error).__name__
    if isinstance(error, smtplib.SMTPResponseException):
        answer = error.smtp_error
        text = f"{error.smtp_code} {answer.decode('utf-8', 'replace') if isinstance(answer, bytes) else answer}"
    encoded = base64.b64encode(password.encode()).decode() if password else None
    return safe_text(text, password, encoded, limit=200)


_AtLeastOne = Annotated[int, msgspec.Meta(ge=1)]
_Target = TypeVar("_Target", bound=Login)

_Sources = msgspec.defstruct(
    "_Sources",
    [(stream, Literal[POLICIES] | None, None) for stream in STREAMS],
    forbid_unknown_fields=True,
    frozen=True,
)


class _Section(Rules, forbid_unknown_fields=True, frozen=True):
    """The section as it is written, with its defaults."""

    jobs: tuple[Argument, ...] = ("data_aggregation",)
    days: _AtLeastOne = DEFAULT_DAYS
    publish: bool | None = None
    parallel: _AtLeastOne = 1
    attempts: _AtLeastOne = 3
    sources: _Sources = _Sources()  # type: ignore[valid-type]  # made of the streams
    run_spark: tuple[Argument, ...] = ()
    metrics: str | None = None
    mail: Mail | None = None
    push: Push | None = None
    pushgateway: str | None = None


class Targets(msgspec.Struct, frozen=True):
    """Where it is reported how a daily ended. ``pushgateway``: the address of a
    Pushgateway that takes the metrics of CMS's cron jobs, begin and end.
    """

    metrics: Path | None = None
    mail: Mail | None = None
    push: Push | None = None
    pushgateway: str | None = None


class DailyConfig(Targets, frozen=True, kw_only=True):
    """What ``cmsspark daily`` does. ``days``: how far back it looks. ``publish``:
    whether stored days are published. ``parallel``: days at once. ``attempts``: failed
    runs of the same inputs before a day is given up. ``options``: of run_spark itself.
    ``policies``: by source, one of ``POLICIES``.
    """

    jobs: tuple[Job, ...]
    days: int
    publish: bool
    parallel: int
    rules: Rules
    policies: Mapping[str, str]
    options: tuple[str, ...]
    attempts: int = 3


def daily_config(settings: Settings) -> DailyConfig:
    """Return the ``daily`` section of the settings, checked. Raises SettingsError (78)
    with the key's line.
    """
    section = settings.section(_Section, "daily")
    policies = msgspec.structs.asdict(section.sources)
    jobs = {job.name: job for job in (_job(settings, str(name)) for name in section.jobs)}

    def depth(job: Job) -> int:
        """Return how many jobs a job stands behind, of which each reads the one before."""
        return max((1 + depth(jobs[name]) for name in job.after if name in jobs), default=0)

    return DailyConfig(
        jobs=tuple(sorted(jobs.values(), key=depth)),
        days=section.days,
        publish=bool(settings.publishing) if section.publish is None else section.publish,
        parallel=section.parallel,
        rules=msgspec.convert(section, Rules, from_attributes=True),
        policies={stream: policy for stream, policy in policies.items() if policy is not None},
        options=tuple(str(argument) for argument in section.run_spark),
        metrics=settings.folder / section.metrics if section.metrics else None,
        mail=_mail(settings, section.mail) if section.mail else None,
        push=_push(settings, section.push) if section.push else None,
        pushgateway=_pushgateway(settings, section.pushgateway),
        attempts=section.attempts,
    )


def load_targets(settings: Settings) -> Targets:
    """Return the targets of the settings, each by itself: an error elsewhere keeps no mail back."""
    targets = {}
    for name in ("metrics", "mail", "push", "pushgateway"):
        if name in settings.daily or name == "pushgateway":
            chosen = {name: settings.daily[name]} if name in settings.daily else {}
            alone = replace(settings, daily={"jobs": [], **chosen})
            with suppress(SettingsError):
                targets[name] = getattr(daily_config(alone), name)
    return Targets(**targets)


def _job(settings: Settings, name: str) -> Job:
    """Return a job of which each day has a result of its own."""
    where = settings.where("daily", "jobs")
    try:
        job = find_job(name)
    except UsageError as error:
        raise SettingsError(error.problem, where=where, found=error.found) from None
    if not job.tables or job.of_periods or job.is_day_optional:
        raise SettingsError(
            "daily.jobs names jobs that work on a day",
            where=where,
            found=name,
            next_step="daily publishes by itself (`publish: true`); periods are a line of their own in cron",
        )
    return job


def _mail(settings: Settings, section: Mail) -> Mail:
    is_open = section.security == "none" and section.server not in LOOPBACK
    return _with_login(settings, section, "mail", is_open)


def _push(settings: Settings, section: Push) -> Push:
    try:
        address = HttpAddress.from_url(section.url)
    except ValueError:
        raise SettingsError(
            "push needs `url`: http(s)://HOST:PORT/metrics/job/NAME, without a password in it",
            where=settings.where("daily", "push"),
        ) from None
    return _with_login(settings, section, "push", address.is_exposed)


def _pushgateway(settings: Settings, url: str | None) -> str | None:
    """Return the Pushgateway of the settings, or of PUSHGATEWAY_URL, which CMS's cron
    jobs have.
    """
    chosen = url or os.environ.get("PUSHGATEWAY_URL")
    if not chosen:
        return None
    try:
        HttpAddress.from_url(f"{chosen.rstrip('/')}/metrics")
    except ValueError:
        raise SettingsError(
            "pushgateway has the form http(s)://HOST:PORT, without a password in it",
            where=settings.where("daily", "pushgateway") if url else "PUSHGATEWAY_URL",
            found=chosen,
        ) from None
    return chosen.rstrip("/")


def _with_login(settings: Settings, section: _Target, name: str, is_open: bool) -> _Target:
    """Return the target with its paths resolved; ``is_open``: the connection is not encrypted."""
    if (section.user is None) != (section.password_file is None):
        raise SettingsError(
            "`user` and `password_file` go together", where=settings.where("daily", name)
        )
    if is_open and section.user is not None:
        raise SettingsError(
            f"a password goes over TLS only, and {name} has none",
            where=settings.where("daily", name),
            next_step="use `security: starttls` or `tls`" if name == "mail" else "use https",
        )
    paths = {"password_file": section.password_file, "ca": section.ca}
    resolved = {
        key: str(settings.folder / path) for key, path in paths.items() if path is not None
    }
    return msgspec.structs.replace(section, **resolved)
