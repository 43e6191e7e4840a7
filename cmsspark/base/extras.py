"""Packages of extras, which a bare installation does not have."""

from __future__ import annotations

from importlib.util import find_spec

from cmsspark.base.errors import UsageError


def require(needs: str, *packages: str, extra: str, alternative: str = "") -> None:
    """Raise UsageError (2) that names the extra where one of its packages is not installed.

    ``needs``: who needs them, such as ``events need``; ``alternative``: what else can be done.
    """
    if missing := [name for name in packages if find_spec(name) is None]:
        next_step = f"pip install 'cmsspark[{extra}]'{alternative}"
        raise UsageError(
            f"{needs} {', '.join(missing)}", found="not installed", next_step=next_step
        )
