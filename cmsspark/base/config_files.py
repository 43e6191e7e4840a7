"""Configuration files: plain YAML with the line of every key, converted to msgspec structs.

:func:`parse` reads a file of settings, views or a profile. :meth:`ConfigFile.convert`
      converts it, or a part, to a struct. Every error is a SettingsError (78) with file
      and line, the wrong value, the expected one, and the nearest valid name.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, Literal, TypeVar, get_args, get_origin

import msgspec
import yaml
from yaml.composer import Composer
from yaml.resolver import Resolver

from cmsspark.base.errors import SettingsError
from cmsspark.base.text.spelling import suggestion

_T = TypeVar("_T")
#: A key of a file: the names from the top level down to it; an element of a list is its
#: number, from 0.
Key = tuple[str, ...]
#: The 1-based line of each key.
Lines = Mapping[Key, int]

#: msgspec's type names and their descriptions in messages.
_TYPE_NAMES: Final = {
    "str": "a text",
    "int": "a whole number",
    "float": "a number",
    "bool": "true or false",
    "array": "a list",
    "object": "`key: value` lines",
}
_EXPECTED: Final = re.compile(r"Expected `([^`]+)`(.*?)(?:, got `.*)?")
_UNKNOWN: Final = re.compile(r"Object contains unknown field `(.*)`", re.DOTALL)
_MISSING: Final = re.compile(r"Object missing required field `(.*)`")
_LENGTH: Final = re.compile(r" of length >= (\d+)")
#: A step of msgspec's path: a field, the number of an element, or a key of a mapping,
#: which it does not name.
_STEP: Final = re.compile(r"\.([^.\[]+)|\[([0-9]+)\]|(\[\.\.\.\])")


class ConfigFile(msgspec.Struct, frozen=True):
    """A parsed file: its name for messages, its values, and the line of every key."""

    name: str
    values: Mapping[str, Any]
    lines: Lines = msgspec.field(default_factory=dict)

    def where(self, *key: str) -> str:
        """Return ``file, line N`` of a key, or of the nearest enclosing key that has a line."""
        for length in range(len(key), 0, -1):
            if key[:length] in self.lines:
                return f"{self.name}, line {self.lines[key[:length]]}"
        return self.name

    def error(
        self, problem: str, *key: str, found: object = None, next_step: str | None = None
    ) -> SettingsError:
        """Return an error about a key; ``found`` is the wrong value, shown as Python writes it."""
        shown = None if found is None else repr(found)
        return SettingsError(problem, where=self.where(*key), found=shown, next_step=next_step)

    def convert(self, kind: type[_T], *key: str) -> _T:
        """Return the values, or those under ``key``, as a struct. Raises SettingsError (78)."""
        values: Any = self.values
        for name in key:
            values = values[name]
        try:
            return msgspec.convert(values, kind)
        except msgspec.ValidationError as error:
            raise _translated(str(error), self, kind, key, values) from None


def nearest(name: str, valid_names: Iterable[str]) -> str:
    """Return the next step for an unknown name: the most similar valid name, if any,
    and all valid names.
    """
    names = list(valid_names)
    return f"{suggestion(name, names)} use one of: {', '.join(names)}".strip()


def _translated(message: str, file: ConfigFile, kind: Any, key: Key, values: Any) -> SettingsError:
    """Return a validation error of msgspec as an error about the key in the file."""
    reason, _, path = message.partition(" - at `$")
    in_list = False
    names = key
    for name, number, is_entry in _STEP.findall(path.rstrip("`")):
        in_list = bool(number)
        if is_entry:
            kind = _arguments(kind, dict)[1]
            name = _wrong_entry(values, kind)
            key, names, values = (*key, name), (*names, name), values[name]
            continue
        values = values[int(number)] if number else values[name]
        kind = _arguments(kind, list, tuple)[0] if number else _fields(kind).get(name)
        key, names = (*key, number or name), names if number else (*names, name)
    dotted = ".".join(names)
    if unknown := _UNKNOWN.fullmatch(reason):
        problem = f"there is no setting {unknown[1]!r}" + (f" under {dotted}" if dotted else "")
        return file.error(problem, *key, unknown[1], next_step=nearest(unknown[1], _fields(kind)))
    if missing := _MISSING.fullmatch(reason):
        return file.error(f"{dotted or 'the file'} needs `{missing[1]}`", *key)
    subject = f"one of {dotted}" if in_list else dotted or "the file"
    if choices := [
        str(value)
        for member in _members(kind)
        if get_origin(member) is Literal
        for value in get_args(member)
    ]:
        hint = nearest(values, choices) if isinstance(values, str) else None
        return file.error(
            f"{subject} is not one of {', '.join(choices)}", *key, found=values, next_step=hint
        )
    expected = _EXPECTED.fullmatch(reason)
    if expected is None:
        return file.error(f"{subject}: {reason}", *key, found=values)
    types = [_TYPE_NAMES.get(name, name) for name in expected[1].split(" | ") if name != "null"]
    verb, below = ("has no", " below it") if types == [_TYPE_NAMES["object"]] else ("is not", "")
    is_one_value = not isinstance(values, list | dict) and values is not None
    hint = "put it in quotes" if types == [_TYPE_NAMES["str"]] and is_one_value else None
    if types == [_TYPE_NAMES["array"]] and is_one_value:
        hint = "write it as [VALUE, …], or one `- VALUE` a line"
    limit = (
        _LENGTH.sub(r" with at least \1 in it", expected[2])
        if types == [_TYPE_NAMES["array"]]
        else expected[2]
    )
    return file.error(
        f"{subject} {verb} {' or '.join(types)}{limit}{below}", *key, found=values, next_step=hint
    )


def _members(kind: Any) -> list[Any]:
    """Return the members of a union type, without None."""
    if hasattr(kind, "__metadata__"):  # Annotated
        return _members(kind.__origin__)
    if get_origin(kind) in (None, list, tuple, dict, Literal):
        return [kind]
    return [
        inner
        for member in get_args(kind)
        if member is not type(None)
        for inner in _members(member)
    ]


def _fields(kind: Any) -> dict[str, Any]:
    structs = [
        member
        for member in _members(kind)
        if isinstance(member, type) and issubclass(member, msgspec.Struct)
    ]
    return {
        field.encode_name: field.type
        for struct in structs
        for field in msgspec.structs.fields(struct)
    }


def _arguments(kind: Any, *origins: type) -> tuple[Any, ...]:
    """Return the types of which a list, tuple or mapping that ``kind`` allows consists;
    None where it allows none.
    """
    return next(
        (get_args(member) for member in _members(kind) if get_origin(member) in origins),
        (None, None),
    )


def _wrong_entry(values: Mapping[str, Any], kind: Any) -> str:
    """Return the first key of a mapping whose value is not of the kind."""
    for name, value in values.items():
        try:
            msgspec.convert(value, kind)
        except msgspec.ValidationError:
            return name
    return next(iter(values))


def parse(
    content: bytes, name: str, is_text: Callable[[Key], bool] = lambda key: False
) -> ConfigFile:
    """Parse plain YAML: a mapping with unique keys, without aliases, anchors and tags.

    Numbers and dates of keys for which ``is_text`` is true are kept as text. An empty
    file has no values. Raises SettingsError (78) with ``name`` and line.
    """
    return _Parser(name, is_text).parse(content)


class _PlainLoader(Composer, Resolver):
    """Composes nodes of the events of ``events`` and calls ``check`` with the event
    that each begins with.
    """

    def __init__(self, events: Any, check: Callable[[yaml.Event], None]) -> None:
        Composer.__init__(self)
        Resolver.__init__(self)
        self.check_event, self.peek_event, self.get_event = (
            events.check_event,
            events.peek_event,
            events.get_event,
        )
        self._check = check

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        self._check(self.peek_event())
        return super().compose_node(parent, index)


class _Parser:
    def __init__(self, name: str, is_text: Callable[[Key], bool]) -> None:
        self._name = name
        self._is_text = is_text
        self._lines: dict[Key, int] = {}
        self._scalars = yaml.SafeLoader("")

    def parse(self, content: bytes) -> ConfigFile:
        try:
            node = self._compose(content.decode("utf-8"))
        except UnicodeDecodeError as error:
            raise SettingsError(
                "settings are not UTF-8 text",
                where=self._name,
                found=f"byte {error.start} is not UTF-8",
            ) from None
        except yaml.YAMLError as error:
            mark = getattr(error, "problem_mark", None)
            problem = getattr(error, "problem", None) or str(error)
            if (
                "end of stream" in problem or "<stream end>" in problem
            ):  # point at the construct that is not closed, not at the end of the file
                mark = getattr(error, "context_mark", None) or mark
            where = self._name if mark is None else f"{self._name}, line {mark.line + 1}"
            raise SettingsError(
                "settings are not plain YAML", where=where, found=problem
            ) from None
        except RecursionError:
            raise SettingsError(
                "settings are nested too deep",
                where=self._name,
                found="too many levels",
            ) from None
        if node is None or (isinstance(node, yaml.ScalarNode) and node.tag.endswith(":null")):
            return ConfigFile(self._name, {})
        if not isinstance(node, yaml.MappingNode):
            raise SettingsError(
                "settings are not `key: value` lines",
                where=self._at(node),
                found=f"a {_kind(node)}",
            )
        return ConfigFile(self._name, self._mapping(node, ()), self._lines)

    def _compose(self, text: str) -> yaml.Node | None:
        # libyaml, which not every PyYAML has, is seven times as fast. PyYAML's own
        # parser says better what is wrong.
        quick = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
        try:
            return _PlainLoader(quick(text), self._reject_references).get_single_node()
        except yaml.YAMLError:
            return _PlainLoader(yaml.SafeLoader(text), self._reject_references).get_single_node()

    def _reject_references(self, event: yaml.Event) -> None:
        """Reject aliases, anchors and tags: with them a value can differ from what is
        written at its key.
        """
        reference = None
        if isinstance(event, yaml.AliasEvent):
            reference = f"the alias *{event.anchor}"
        elif isinstance(event, yaml.NodeEvent) and event.anchor:
            reference = f"the anchor &{event.anchor}"
        elif isinstance(event, yaml.ScalarEvent | yaml.CollectionStartEvent) and event.tag:
            reference = f"the tag {event.tag}"
        if reference:
            line = event.start_mark.line + 1 if event.start_mark else "unknown"
            raise SettingsError(
                "settings must not use aliases, anchors or tags",
                where=f"{self._name}, line {line}",
                found=reference,
                next_step="write the value in full",
            )

    def _mapping(self, node: yaml.MappingNode, path: Key) -> dict[str, Any]:
        """Return a mapping as a dict. Records the line of each key and rejects duplicate keys."""
        result: dict[str, Any] = {}
        for key_node, value_node in node.value:
            if not isinstance(key_node, yaml.ScalarNode):
                raise SettingsError(
                    "a key is not a single word",
                    where=self._at(key_node),
                    found=f"a {_kind(key_node)}",
                )
            key = str(key_node.value)
            if key in result:
                raise SettingsError(
                    "a key must not be repeated", where=self._at(key_node), found=f"{key!r} again"
                )
            self._lines[*path, key] = key_node.start_mark.line + 1
            result[key] = self._value(value_node, (*path, key))
        return result

    def _value(self, node: yaml.Node, path: Key) -> Any:
        if isinstance(node, yaml.MappingNode):
            return self._mapping(node, path)
        if isinstance(node, yaml.SequenceNode):
            for number, item in enumerate(node.value):
                self._lines[*path, str(number)] = item.start_mark.line + 1
            return [
                self._value(item, (*path, str(number))) for number, item in enumerate(node.value)
            ]
        if self._is_text(path) and node.tag.rsplit(":", 1)[-1] in ("int", "float", "timestamp"):
            return node.value
        try:
            return self._scalars.construct_object(node)
        except (yaml.YAMLError, ValueError) as error:
            raise SettingsError(
                "not a plain value", where=self._at(node), found=str(error)
            ) from None

    def _at(self, node: yaml.Node) -> str:
        return f"{self._name}, line {node.start_mark.line + 1}"


def _kind(node: yaml.Node) -> str:
    return {"MappingNode": "mapping", "SequenceNode": "list"}.get(
        type(node).__name__, "single value"
    )
