"""A YAML file as values that know their place, so that every mistake is told with its file and line.

Texts may name variables of the environment: `${NAME}`, or `${NAME:-otherwise}`.
"""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final, NoReturn

from rookery.errors import InvalidPipeline

FILE_MAX_CHARS: Final = 1 << 20
DEPTH_MAX: Final = 64
VALUES_MAX: Final = 100_000
"""Of one file; a value that aliases repeat counts each time."""

_VARIABLE: Final = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)(?::-([^}]*))?\}")
_DURATION: Final = re.compile(r"(\d{1,12})\s*([a-z]+)")
_UNITS: Final = {
    "ms": 1,
    "millisecond": 1,
    "s": 1_000,
    "sec": 1_000,
    "second": 1_000,
    "m": 60_000,
    "min": 60_000,
    "minute": 60_000,
    "h": 3_600_000,
    "hour": 3_600_000,
    "d": 86_400_000,
    "day": 86_400_000,
}


class Value:
    """A value of the file: a mapping, a list or a scalar. `name` is how to reach it, such as `sink.table`."""

    __slots__ = ("_node", "file", "line", "name")

    def __init__(self, file: Path, node: Any, name: str) -> None:
        self.file = file
        self.name = name
        self.line: int = node.start_mark.line + 1
        self._node = node

    def fail(self, message: str, line: int | None = None) -> NoReturn:
        what = f"{self.name}: {message}" if self.name else message
        raise InvalidPipeline(f"{self.file}:{line or self.line}: {what}", argument=self.name or None)

    # Mappings and lists

    def fields(self, *known: str) -> dict[str, Value]:
        """The entries of a mapping; names other than the known ones are mistakes, if any is known."""
        import yaml

        if not isinstance(self._node, yaml.MappingNode):
            self.fail(f"must be a mapping, such as {known[0] if known else 'key'}: …")
        found: dict[str, Value] = {}
        for key, node in self._node.value:
            name = str(key.value)
            here = Value(self.file, node, f"{self.name}.{name}" if self.name else name)
            here.line = key.start_mark.line + 1
            if known and name not in known:
                near = difflib.get_close_matches(name, known, 1, 0.6)
                hint = f"did you mean {near[0]}?" if near else f"there are {', '.join(known)}"
                here.fail(f"there is no such entry; {hint}")
            if name in found:
                here.fail("is there twice: remove one of them")
            found[name] = here
        return found

    def items(self) -> Iterator[Value]:
        import yaml

        if not isinstance(self._node, yaml.SequenceNode):
            self.fail("must be a list: put a - before each entry")
        for i, node in enumerate(self._node.value):
            yield Value(self.file, node, f"{self.name}[{i}]")

    @property
    def is_list(self) -> bool:
        return bool(self._node.id == "sequence")

    @property
    def is_mapping(self) -> bool:
        return bool(self._node.id == "mapping")

    # Scalars

    def raw(self) -> str:
        """A text as it is, variables and all."""
        if self._node.id != "scalar":
            self.fail("must be a text")
        return str(self._node.value)

    def text(self) -> str:
        value = _VARIABLE.sub(self._variable, self.raw()).strip()
        if not value:
            self.fail("is empty")
        return value

    def _variable(self, found: re.Match[str]) -> str:
        value = os.environ.get(found[1], found[2])
        if value is None:
            self.fail(f"the variable {found[1]} is not set: set it, or write ${{{found[1]}:-otherwise}}")
        return value

    def texts(self) -> tuple[str, ...]:
        """A list of texts, or one."""
        return tuple(each.text() for each in self.items()) if self.is_list else (self.text(),)

    def choice(self, known: Sequence[str]) -> str:
        value = self.text()
        if value not in known:
            near = difflib.get_close_matches(value, known, 1, 0.6)
            self.fail(f"must be {' or '.join(known)}, not {value!r}" + (f"; did you mean {near[0]}?" if near else ""))
        return value

    def flag(self) -> bool:
        return self.choice(("true", "false")) == "true"

    def number(self, smallest: int, largest: int) -> int:
        value = self.text()
        if not re.fullmatch(r"-?\d{1,18}", value) or not smallest <= int(value) <= largest:
            self.fail(f"must be a number from {smallest} to {largest}, not {value!r}")
        return int(value)

    def duration_ms(self) -> int:
        value = self.text().lower()
        found = _DURATION.fullmatch(value)
        unit = _UNITS.get(found[2]) or _UNITS.get(found[2].removesuffix("s")) if found else None
        if found is None or unit is None or not int(found[1]):
            self.fail(f"must be a time such as 500ms, 10s or 5 minutes, not {value!r}")
        return int(found[1]) * unit

    def plain(self) -> Any:
        """The value as Python has it: what is handed to a step of the user's own."""
        if self.is_list:
            return [each.plain() for each in self.items()]
        if self.is_mapping:
            return {name: each.plain() for name, each in self.fields().items()}
        import yaml

        loader = yaml.SafeLoader("")
        try:
            found = loader.construct_object(self._node)
        except (yaml.YAMLError, ValueError, LookupError, TypeError, AttributeError, OverflowError) as error:
            self.fail(f"cannot be read: {getattr(error, 'problem', None) or error}")
        return self.text() if isinstance(found, str) and found.strip() else found

    def text_line(self, at: int) -> int:
        """The line of the file on which a character of the text is."""
        inside = self.raw()[:at].count("\n")
        block = self._node.style in ("|", ">")
        return int(self._node.start_mark.line) + 1 + inside + block


def _check_nodes(file: Path, node: Any) -> None:
    """Refuse what nests too deeply, or grows too large where aliases repeat it."""
    sizes: dict[int, int] = {}

    def size_of(node: Any, depth: int) -> int:
        """How many values the node stands for, with those that aliases repeat."""
        known = sizes.get(id(node))
        if known is not None and known > 0:
            return known
        if known == 0 or depth > DEPTH_MAX:
            line = node.start_mark.line + 1
            raise InvalidPipeline(f"{file}:{line}: lists and mappings nest deeper than {DEPTH_MAX}")
        sizes[id(node)] = 0
        inner = node.value if isinstance(node.value, list) else ()
        parts = (part for each in inner for part in (each if isinstance(each, tuple) else (each,)))
        sizes[id(node)] = size = 1 + sum(size_of(part, depth + 1) for part in parts)
        if size > VALUES_MAX:
            raise InvalidPipeline(f"{file}:{node.start_mark.line + 1}: there are more than {VALUES_MAX} values")
        return size

    size_of(node, 1)


def read(file: Path) -> Value:
    """The one document of a file."""
    try:
        import yaml
    except ModuleNotFoundError:
        raise InvalidPipeline("pipelines need PyYAML: pip install 'rookery[spark]'") from None
    try:
        text = file.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise InvalidPipeline(f"{file}: there is no such file", argument="file") from None
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidPipeline(f"{file}: cannot be read: {error}", argument="file") from None
    if len(text) > FILE_MAX_CHARS:
        raise InvalidPipeline(f"{file}: the file has more than {FILE_MAX_CHARS} characters", argument="file")
    try:
        node = yaml.compose(text, yaml.SafeLoader)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = mark.line + 1 if mark is not None else 1
        problem = getattr(error, "problem", None) or str(error)
        raise InvalidPipeline(f"{file}:{line}: this is no YAML: {problem}; look at quotes and indentation") from None
    except (ValueError, OverflowError) as error:
        # PyYAML does not look whether the number of a character is one
        raise InvalidPipeline(f"{file}: this is no YAML: {error}") from None
    except RecursionError:
        raise InvalidPipeline(f"{file}:1: lists and mappings nest deeper than {DEPTH_MAX}") from None
    if node is None:
        raise InvalidPipeline(f"{file}:1: the file is empty: `rookery pipelines new` writes one to begin with")
    _check_nodes(file, node)
    return Value(file, node, "")
