"""Profiles: the tuned options of ``etc/spark/*.yaml``, each with why it is so.

A profile is YAML: ``about``, ``extends`` (another profile, laid below it), ``master``,
``deploy_mode`` and ``options``, where each option is ``{value or computed, why,
when}``. ``computed`` names a value that depends on the machine; ``when`` lists what
must hold for the option to be used.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal

import msgspec

from cmsspark.base import config_files
from cmsspark.base.config_files import ConfigFile
from cmsspark.base.errors import UsageError
from cmsspark.base.resources import read_text, resource
from cmsspark.settings.settings import spark_options
from cmsspark.submit.host import Host
from cmsspark.submit.spark_options import Options

GIB: Final = 1 << 30
#: What ``when`` may ask for.
CONDITIONS: Final = ("built-in", "own", "client", "cluster", "event-log-folder")


@dataclass(frozen=True)
class Profile:
    """One profile file; ``options`` in the order of the file."""

    name: str
    origin: str
    master: str | None
    deploy_mode: str | None
    options: Mapping[str, ProfileOption]
    below: Profile | None = None

    def settled(self, key: str) -> str | None:
        """Return ``master`` or ``deploy_mode``, here or in the profile below."""
        value = getattr(self, key)
        return value if value is not None or self.below is None else self.below.settled(key)


def driver_memory(host: Host) -> str:
    """Return the heap of a driver that does its work on this machine: a quarter of the
    memory, 1 to 16 GiB.

    Python's workers and the page cache need the rest.
    """
    return f"{max(1, min(16, host.memory // 4 // GIB))}g"


def shuffle_partitions(host: Host) -> str:
    """Return one partition a core: what reaches a shuffle here is small, and each task
    costs some milliseconds.
    """
    return str(host.cores)


def page(host: Host) -> str:
    """Return whether Spark's page is there: where somebody sits at a terminal, who is
    told its address.
    """
    return "true" if host.is_terminal else "false"


def pod_template(host: Host) -> str:
    """Return the pod template of this installation: inside the package, or beside it in
    a checkout.
    """
    inside = host.package / "etc"
    return str((inside if inside.is_dir() else host.package.parent / "etc") / "k8s" / "pod.yaml")


COMPUTED: Final[Mapping[str, Callable[[Host], str]]] = {
    "driver_memory": driver_memory,
    "shuffle_partitions": shuffle_partitions,
    "page": page,
    "pod_template": pod_template,
}


class ProfileOption(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """An option of a profile: its ``value``, or the name of a computed one; why it is
    so; what must hold for it.
    """

    value: str | int | float | bool | None = None
    computed: Literal[*COMPUTED] | None = None  # type: ignore[valid-type]  # the names of a mapping
    why: str = ""
    when: Sequence[Literal[CONDITIONS]] | None = None  # type: ignore[valid-type]  # a tuple of them


class _ProfileFile(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    about: str | None = None
    extends: str | None = None
    master: str | None = None
    deploy_mode: str | None = None
    options: dict[str, Any] | None = None


def load_profile(name: str) -> Profile:
    """Return the profile of that name in ``etc/spark``, or of that file. Raises
    UsageError (2), SettingsError (78).
    """
    if "/" in name or name.endswith((".yaml", ".yml")):
        file = Path(name).expanduser()
        if not file.is_file():
            raise UsageError(
                "the profile is not a file",
                where=name,
                found="no such file",
                next_step="name local, yarn, k8s or a YAML file",
            )
        return _profile(file.stem, name, file.read_bytes())
    names = sorted(entry.name.removesuffix(".yaml") for entry in resource("etc/spark").iterdir())
    if name not in names:
        raise UsageError(
            f"there is no profile {name!r}",
            found=", ".join(names),
            next_step="or name a .yaml file",
        )
    file_name = f"etc/spark/{name}.yaml"
    return _profile(name, file_name, read_text(file_name).encode())


def _profile(name: str, origin: str, content: bytes) -> Profile:
    # Spark reads its values itself: numbers stay as they are written.
    file = config_files.parse(
        content, origin, is_text=lambda key: key[0] == "options" and key[-1] == "value"
    )
    written = file.convert(_ProfileFile)
    options = {option: _option(file, option) for option in written.options or {}}
    below = load_profile(written.extends) if written.extends else None
    return Profile(name, origin, written.master, written.deploy_mode, options, below)


def _option(file: ConfigFile, option: str) -> ProfileOption:
    entry = file.convert(ProfileOption, "options", option)
    if (entry.value is None) == (entry.computed is None):
        raise file.error(f"{option} has either `value` or `computed`", "options", option)
    if entry.value is not None:
        spark_options({option: entry.value}, lambda _: file.where("options", option))
    return entry


def add_profile(options: Options, profile: Profile, host: Host, holds: set[str]) -> None:
    """Lay a profile's options, those it extends first; ``holds`` are the conditions that are met."""
    if profile.below is not None:
        add_profile(options, profile.below, host, holds)
    for name, entry in profile.options.items():
        if not set(entry.when or ()) <= holds:
            continue
        if entry.computed is not None:
            value = COMPUTED[entry.computed](host)
        else:
            value = spark_options({name: entry.value}, lambda _: profile.origin)[name]
        options.set_option(name, value, profile.origin, entry.why)
