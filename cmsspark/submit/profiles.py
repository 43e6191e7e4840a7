"""Profiles: the tuned options of ``etc/spark/*.yaml``, each with why it is so.

A profile is YAML: ``about``, ``extends`` (another profile, laid below it), ``master``, ``deploy_mode`` and ``options``,
where each option is ``{value or computed, why, when}``. ``computed`` names a value that depends on the machine;
``when`` lists what must hold for the option to be used.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import yaml

from cmsspark.errors import SettingsError, UsageError
from cmsspark.resources import read_text, resource
from cmsspark.settings import spark_options
from cmsspark.submit.host import Host
from cmsspark.submit.options import Options

GIB: Final = 1 << 30
_KEYS: Final = {"about", "extends", "master", "deploy_mode", "options"}
_OPTION_KEYS: Final = {"value", "computed", "why", "when"}
#: What ``when`` may ask for.
CONDITIONS: Final = ("built-in", "own", "client", "cluster", "event-log-folder")


@dataclass(frozen=True)
class Profile:
    """One profile file; ``options`` in the order of the file."""

    name: str
    origin: str
    master: str | None
    deploy_mode: str | None
    options: Mapping[str, Mapping[str, Any]]
    below: Profile | None = None

    def settled(self, key: str) -> str | None:
        """``master`` or ``deploy_mode``, here or in the profile below."""
        own = getattr(self, key)
        return own if own is not None or self.below is None else self.below.settled(key)


def driver_memory(host: Host) -> str:
    """Heap of a driver that does its work on this machine: a quarter of the memory, 1 to 16 GiB.

    Python's workers and the page cache need the rest.
    """
    return f"{max(1, min(16, host.memory // 4 // GIB))}g"


def shuffle_partitions(host: Host) -> str:
    """One a core: what reaches a shuffle here is small, and each task costs some milliseconds."""
    return str(host.cores)


def pod_template(host: Host) -> str:
    """The pod template of this installation: inside the package, or beside it in a checkout."""
    inside = host.package / "etc"
    return str((inside if inside.is_dir() else host.package.parent / "etc") / "k8s" / "pod.yaml")


COMPUTED: Final[Mapping[str, Callable[[Host], str]]] = {
    "driver_memory": driver_memory,
    "shuffle_partitions": shuffle_partitions,
    "pod_template": pod_template,
}


def load_profile(name: str) -> Profile:
    """The profile of that name in ``etc/spark``, or of that file. Raises UsageError (2), SettingsError (78)."""
    if "/" in name or name.endswith((".yaml", ".yml")):
        file = Path(name).expanduser()
        if not file.is_file():
            raise UsageError("a profile file is wanted", where=name, found="no such file")
        return _profile(file.stem, name, file.read_text(encoding="utf-8"))
    known = sorted(entry.name.removesuffix(".yaml") for entry in resource("etc/spark").iterdir())
    if name not in known:
        raise UsageError(f"there is no profile {name!r}", found=", ".join(known), next_step="or name a .yaml file")
    place = f"etc/spark/{name}.yaml"
    return _profile(name, place, read_text(place))


def _profile(name: str, origin: str, text: str) -> Profile:
    try:
        loaded = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise SettingsError("a profile is YAML", where=origin, found=str(error)) from None
    if not isinstance(loaded, dict) or set(loaded) - _KEYS or not isinstance(loaded.get("options") or {}, dict):
        raise SettingsError(f"a profile has the keys {', '.join(sorted(_KEYS))}", where=origin, found=str(loaded)[:100])
    options = loaded.get("options") or {}
    for option, entry in options.items():
        _check_option(option, entry, origin)
    below = load_profile(loaded["extends"]) if loaded.get("extends") else None
    return Profile(name, origin, loaded.get("master"), loaded.get("deploy_mode"), options, below)


def _check_option(option: str, entry: Any, origin: str) -> None:
    where = f"{origin}, {option}"
    if not isinstance(entry, dict) or set(entry) - _OPTION_KEYS or ("value" in entry) == ("computed" in entry):
        raise SettingsError("an option of a profile is {value or computed, why, when}", where=where, found=repr(entry))
    if "computed" in entry and entry["computed"] not in COMPUTED:
        raise SettingsError(f"computed is one of {', '.join(COMPUTED)}", where=where, found=repr(entry["computed"]))
    unknown = set(entry.get("when") or []) - set(CONDITIONS)
    if unknown:
        raise SettingsError(
            f"when lists some of {', '.join(CONDITIONS)}", where=where, found=", ".join(sorted(unknown))
        )


def lay_profile(options: Options, profile: Profile, host: Host, holds: set[str]) -> None:
    """Lay a profile's options, those it extends first; ``holds`` are the conditions that are met."""
    if profile.below is not None:
        lay_profile(options, profile.below, host, holds)
    for name, entry in profile.options.items():
        if not set(entry.get("when") or []) <= holds:
            continue
        if "computed" in entry:
            value = COMPUTED[entry["computed"]](host)
        else:
            value = spark_options({name: entry["value"]}, lambda _: profile.origin)[name]
        options.lay(name, value, profile.origin, str(entry.get("why", "")))
