"""Reads the keys of a catalogue file for `board_file`, where a key that is not known, or read twice, is an error.

YAML is read with every scalar as text, and this module says what each is meant to be: PCI ids such as `1e30` and `2236`
are hexadecimal whatever a YAML resolver takes them for.
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import StrEnum
from pathlib import Path
from typing import Any, TypeVar

from gpuops.errors import UsageError

E = TypeVar("E", bound=StrEnum)


class Fields:
    """One mapping of a file. Each getter takes its key out; `done` complains about what is left."""

    __slots__ = ("_left", "_where")

    def __init__(self, raw: dict[str, Any], where: str) -> None:
        self._left = dict(raw)
        self._where = where

    def done(self) -> None:
        """Promise that every key was read. Raises UsageError."""
        if self._left:
            raise UsageError(f"{self._where}: unknown key {', '.join(map(repr, self._left))}")

    @property
    def keys(self) -> tuple[str, ...]:
        return tuple(self._left)

    def text(self, key: str) -> str:
        value = self._take(key)
        if not isinstance(value, str):
            raise self._wrong(key, value)
        return value

    def maybe_text(self, key: str) -> str | None:
        """The text, or None where the file says `null` or nothing."""
        return None if self._is_null(key) else self.text(key)

    def number(self, key: str) -> int:
        value = self.text(key)
        try:
            return int(value)
        except ValueError:
            raise self._wrong(key, value) from None

    def maybe_number(self, key: str) -> int | None:
        return None if self._is_null(key) else self.number(key)

    def flag(self, key: str) -> bool:
        value = self.text(key)
        if value not in ("true", "false"):
            raise self._wrong(key, value)
        return value == "true"

    def maybe_flag(self, key: str) -> bool | None:
        return None if self._is_null(key) else self.flag(key)

    def choice(self, key: str, vocabulary: type[E]) -> E:
        """The member of the enumeration that the text names."""
        value = self.text(key)
        try:
            return vocabulary(value)
        except ValueError:
            raise self._wrong(key, value) from None

    def maybe_choice(self, key: str, vocabulary: type[E]) -> E | None:
        return None if self._is_null(key) else self.choice(key, vocabulary)

    def hexadecimal(self, key: str) -> int:
        value = self.text(key)
        try:
            return int(value, 16)
        except ValueError:
            raise self._wrong(key, value) from None

    def texts(self, key: str) -> tuple[str, ...]:
        value = self._take(key)
        if not isinstance(value, list):
            raise self._wrong(key, value)
        return tuple(value)

    def numbers(self, key: str) -> tuple[int, ...]:
        """The list of whole numbers; () where the file has none."""
        return self._whole(key, 10) if key in self._left else ()

    def hexadecimals(self, key: str) -> tuple[int, ...]:
        """The list of hexadecimal numbers."""
        return self._whole(key, 16)

    def mapping(self, key: str) -> dict[str, Any]:
        """The mapping of that key; {} where the file has none."""
        value = self._left.pop(key, {})
        if not isinstance(value, dict):
            raise self._wrong(key, value)
        return value

    def mappings(self, key: str) -> list[dict[str, Any]]:
        """The list of mappings of that key; [] where the file has none."""
        value = self._left.pop(key, [])
        if not isinstance(value, list):
            raise self._wrong(key, value)
        return value

    def rows(self, key: str) -> Iterator[Fields]:
        """Each mapping of the list of that key, checked to be read whole."""
        for index, row in enumerate(self.mappings(key)):
            fields = Fields(row, f"{self._where}: {key}[{index}]")
            yield fields
            fields.done()

    def section(self, key: str) -> Fields:
        """The mapping of that key, to be read and `done` by the caller."""
        return Fields(self.mapping(key), f"{self._where}: {key}")

    def named_rows(self, key: str) -> Iterator[tuple[str, Fields]]:
        """Each mapping under a name of its own, checked to be read whole; none where the file has none."""
        for name, row in self.mapping(key).items():
            fields = Fields(row, f"{self._where}: {key}.{name}")
            yield name, fields
            fields.done()

    def _whole(self, key: str, base: int) -> tuple[int, ...]:
        values = self.texts(key)
        try:
            return tuple(int(value, base) for value in values)
        except ValueError:
            raise self._wrong(key, values) from None

    def _is_null(self, key: str) -> bool:
        if self._left.get(key, "null") != "null":
            return False
        self._left.pop(key, None)
        return True

    def _take(self, key: str) -> Any:
        try:
            return self._left.pop(key)
        except KeyError:
            raise UsageError(f"{self._where}: {key!r} is missing") from None

    def _wrong(self, key: str, value: object) -> UsageError:
        return UsageError(f"{self._where}: {key!r} cannot be {value!r}")


def read(path: Path) -> Fields:
    """The mapping a catalogue file holds. Raises UsageError where it is none."""
    # Imported here: `gpuops --help` reads no catalogue and pays for no YAML.
    import yaml

    # libyaml's parser where PyYAML was built with it: five times faster.
    loader = getattr(yaml, "CBaseLoader", yaml.BaseLoader)
    try:
        raw = yaml.load(path.read_bytes(), Loader=loader)  # noqa: S506  a BaseLoader makes only text, lists and mappings
    except yaml.YAMLError as fault:
        raise UsageError(f"{path.name} is not YAML: {fault}") from fault
    if not isinstance(raw, dict):
        raise UsageError(f"{path.name} holds no mapping")
    return Fields(raw, path.name)
