"""What an API server answers, as errors of ours with the next step."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager

from cmsspark.base.errors import (
    CmssparkError,
    InputMissing,
    NotAllowed,
    NotReady,
    SettingsError,
    UsageError,
)
from cmsspark.settings.secrets import safe_text

#: What is in refusals by admission, which have the status of a missing right.
_ADMISSION = (
    "violates PodSecurity",
    "admission webhook",
    "denied the request",
    "usage per Container",
    "usage per Pod",
    "ValidatingAdmissionPolicy",
    "must specify",
    "PriorityClass",
)


class ApiAway(NotReady):
    """The API server does not answer, or not now (75)."""


@contextmanager
def api_errors(action: str, where: str) -> Iterator[None]:
    """Errors of the client inside become errors of ours; ``what`` was wanted of the API
    server ``where``.
    """
    import urllib3
    from kubernetes.client.exceptions import ApiException

    try:
        yield
    except ApiException as error:
        raise translated(error.status or 0, read_message(error), action, where) from None
    except (urllib3.exceptions.HTTPError, OSError) as error:
        raise ApiAway(
            "the API server does not answer",
            where=where,
            found=safe_text(str(error)),
            next_step="check the address in the kubeconfig and the network, then run it again",
        ) from None


def read_message(error: Exception) -> str:
    """Return what the API server says, or the client's own reason."""
    body = getattr(error, "body", None)
    try:
        return safe_text(str(json.loads(body or "")["message"]), limit=600)
    except (ValueError, KeyError, TypeError):
        return safe_text(str(getattr(error, "reason", None) or error), limit=600)


def translated(status: int, message: str, action: str, where: str) -> CmssparkError:
    """Return the error for an HTTP status and the API server's message."""
    if status == 401:
        return NotAllowed(
            "the API server does not know this user",
            where=where,
            found=message,
            next_step="renew the kubeconfig's token",
        )
    if status == 403 and ("exceeded quota" in message or "status unknown for quota" in message):
        return NotReady(
            f"{action}: the quota of the namespace is used up",
            where=where,
            found=message,
            next_step="take fewer or smaller workers, or wait until others end",
        )
    if status == 403 and any(sign in message for sign in _ADMISSION):
        # Said of a limit, of pod security, or by a webhook: no role would help.
        return SettingsError(
            f"{action}: admission refuses it",
            where=where,
            found=message,
            next_step="change --cpus, --memory or --pod-template as the message says, or ask the administrators",
        )
    if status == 403:
        return NotAllowed(
            f"{action} is forbidden",
            where=where,
            found=message,
            next_step="ask for the role in etc/k8s/train-role.yaml: kubectl apply -f etc/k8s/train-role.yaml",
        )
    if status == 409:
        return UsageError(
            f"{action}: the name is taken",
            where=where,
            found=message,
            next_step="choose another --name",
        )
    if status == 404:
        return InputMissing(f"{action}: it does not exist", where=where, found=message)
    if status in (400, 413, 422):
        return SettingsError(f"{action}: the API server refuses it", where=where, found=message)
    return ApiAway(f"{action} failed", where=where, found=f"{status} {message}")
