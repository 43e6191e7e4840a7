"""How a morning is told to those who were not there: metrics for Prometheus's textfile collector, and mail on trouble.

What cannot be told never changes what was done: both raise OutputError (73), which the caller tells in its summary.
"""

from __future__ import annotations

import os
import smtplib
import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from email.message import EmailMessage
from pathlib import Path
from typing import Final

from cmsspark.errors import OutputError

#: Seconds that a mail server may take for each answer.
PATIENCE_S: Final = 20.0


@dataclass(frozen=True)
class Mail:
    """Where mail on trouble goes, and by which server; ``security`` is none or starttls."""

    to: tuple[str, ...]
    sender: str
    server: str = "localhost"
    port: int = 25
    security: str = "none"

    def send(self, subject: str, text: str) -> None:
        """Send one mail. Raises OutputError (73) where the server is not there or refuses."""
        message = EmailMessage()
        message["Subject"], message["From"], message["To"] = subject, self.sender, ", ".join(self.to)
        message.set_content(text)
        try:
            with smtplib.SMTP(self.server, self.port, timeout=PATIENCE_S) as smtp:
                if self.security == "starttls":
                    smtp.starttls(context=ssl.create_default_context())
                smtp.send_message(message)
        except (OSError, smtplib.SMTPException) as error:
            where = f"{self.server}:{self.port}"
            raise OutputError("mail cannot be sent", where=where, found=" ".join(str(error).split())[:200]) from None


def write_metrics(path: Path, metrics: Mapping[str, tuple[str, Mapping[str, float]]]) -> None:
    """Write metrics for Prometheus's textfile collector, whole or not at all.

    ``metrics``: name → (help, {labels as they stand in braces, or empty: value}). Raises OutputError (73).
    """
    lines = []
    for name, (about, values) in metrics.items():
        lines += [f"# HELP {name} {about}", f"# TYPE {name} gauge"]
        lines += [f"{name}{f'{{{labels}}}' if labels else ''} {value!r}" for labels, value in values.items()]
    aside = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        aside.write_text("\n".join(lines) + "\n", encoding="utf-8")
        aside.replace(path)
    except OSError as error:
        raise OutputError("metrics cannot be written", where=path, found=error.strerror) from None
