"""Reads the keys of a catalogue file for `board_file`, where a key that is not known, or read twice, is an error.

YAML is read with every scalar as text, and the getters here convert it: PCI ids such as `1e30` and `2236` are
hexadecimal, and a YAML resolver would take them for numbers.
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import StrEnum
from pathlib import Path
from typing import Any, TypeVar

from gpuops.errors import UsageError

E = TypeVar("E", bound=StrEnum)


class Fields:
    """One mapping of a file. Each getter removes its key; `check_all_read` raises UsageError for the remaining keys."""

    __slots__ = ("_unread", "_where")

    def __init__(self, raw: dict[str, Any], where: str) -> None:
        self._unread = dict(raw)
        self._where = where

    def check_all_read(self) -> None:
        """Raise UsageError unless every key was read."""
        if self._unread:
            raise UsageError(f"{self._where}: unknown key {', '.join(map(repr, self._unread))}")

    @property
    def keys(self) -> tuple[str, ...]:
        return tuple(self._unread)

    def text(self, key: str) -> str:
        content = self._take(key)
        if not isinstance(content, str):
            raise self._wrong(key, content)
        return content

    def maybe_text(self, key: str) -> str | None:
        """Return the text; None for `null` or a missing key."""
        return None if self._is_null(key) else self.text(key)

    def number(self, key: str) -> int:
        digits = self.text(key)
        try:
            return int(digits)
        except ValueError:
            raise self._wrong(key, digits) from None

    def maybe_number(self, key: str) -> int | None:
        return None if self._is_null(key) else self.number(key)

    def flag(self, key: str) -> bool:
        word = self.text(key)
        if word not in ("true", "false"):
            raise self._wrong(key, word)
        return word == "true"

    def maybe_flag(self, key: str) -> bool | None:
        return None if self._is_null(key) else self.flag(key)

    def choice(self, key: str, vocabulary: type[E]) -> E:
        """Return the member of the enumeration that the text names."""
        word = self.text(key)
        try:
            return vocabulary(word)
        except ValueError:
            raise self._wrong(key, word) from None

    def maybe_choice(self, key: str, vocabulary: type[E]) -> E | None:
        return None if self._is_null(key) else self.choice(key, vocabulary)

    def hexadecimal(self, key: str) -> int:
        digits = self.text(key)
        try:
            return int(digits, 16)
        except ValueError:
            raise self._wrong(key, digits) from None

    def texts(self, key: str) -> tuple[str, ...]:
        content = self._take(key)
        if not isinstance(content, list):
            raise self._wrong(key, content)
        return tuple(content)

    def numbers(self, key: str) -> tuple[int, ...]:
        """Return the list of whole numbers; () if the key is missing."""
        return self._read_numbers(key, 10) if key in self._unread else ()

    def hexadecimals(self, key: str) -> tuple[int, ...]:
        """Return the list of hexadecimal numbers."""
        return self._read_numbers(key, 16)

    def mapping(self, key: str) -> dict[str, Any]:
        """Return the mapping of that key; {} if it is missing."""
        content = self._unread.pop(key, {})
        if not isinstance(content, dict):
            raise self._wrong(key, content)
        return content

    def mappings(self, key: str) -> list[dict[str, Any]]:
        """Return the list of mappings of that key; [] if it is missing."""
        rows = self._unread.pop(key, [])
        if not isinstance(rows, list):
            raise self._wrong(key, rows)
        return rows

    def rows(self, key: str) -> Iterator[Fields]:
        """Yield each mapping of the list of that key, and check that it was read completely."""
        for index, row in enumerate(self.mappings(key)):
            fields = Fields(row, f"{self._where}: {key}[{index}]")
            yield fields
            fields.check_all_read()

    def section(self, key: str) -> Fields:
        """Return the mapping of that key; the caller reads it and calls `check_all_read`."""
        return Fields(self.mapping(key), f"{self._where}: {key}")

    def named_rows(self, key: str) -> Iterator[tuple[str, Fields]]:
        """Yield each named mapping below that key, and check that it was read completely."""
        for name, row in self.mapping(key).items():
            fields = Fields(row, f"{self._where}: {key}.{name}")
            yield name, fields
            fields.check_all_read()

    def _read_numbers(self, key: str, base: int) -> tuple[int, ...]:
        texts = self.texts(key)
        try:
            return tuple(int(text, base) for text in texts)
        except ValueError:
            raise self._wrong(key, texts) from None

    def _is_null(self, key: str) -> bool:
        if self._unread.get(key, "null") != "null":
            return False
        self._unread.pop(key, None)
        return True

    def _take(self, key: str) -> Any:
        try:
            return self._unread.pop(key)
        except KeyError:
            raise UsageError(f"{self._where}: {key!r} is missing") from None

    def _wrong(self, key: str, content: object) -> UsageError:
        return UsageError(f"{self._where}: {key!r} cannot be {content!r}")


def read(path: Path) -> Fields:
    """Return the mapping in a catalogue file. Raises UsageError for any other content."""
    # imported here, because `gpuops --help` reads no catalogue
    import yaml

    # libyaml's parser where PyYAML was built with it: five times faster.
    loader = getattr(yaml, "CBaseLoader", yaml.BaseLoader)
    try:
        raw = yaml.load(path.read_bytes(), Loader=loader)  # noqa: S506  a BaseLoader makes only text, lists and mappings
    except yaml.YAMLError as fault:
        raise UsageError(f"{path.name} is not YAML: {fault}") from fault
    if not isinstance(raw, dict):
        raise UsageError(f"{path.name}: the top level is not a mapping")
    return Fields(raw, path.name)
