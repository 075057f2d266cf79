"""No mistake repeats what a file holds: it may be a password in the wrong place.

Functions that read a value quote it only for keys that never hold a password (a zone, a time).
"""

from __future__ import annotations

from collections.abc import Iterator
from importlib import import_module
from pkgutil import walk_packages
from typing import Any, Final, get_args

import pytest

import gpuops.config
from gpuops.cli.first_steps.schema import INPUTS
from gpuops.config.decoding import Section, WrongContent, decode, fields_of, is_section, sections_of
from gpuops.model.file_keys import Before, Reads

MISPLACED: Final = "Cn4ry-in-the-wrong-place"


def sections() -> Iterator[type]:
    """Every section of the files and options that people write, and the classes of the model among them."""
    for package_module in walk_packages(gpuops.config.__path__, "gpuops.config."):
        for value in vars(import_module(package_module.name)).values():
            if isinstance(value, type) and issubclass(value, Section) and value.__module__ == package_module.name:
                yield from within(value)
    for file in INPUTS.values():
        module, _, name = file.checked_by.partition(":")
        if is_section(section := getattr(import_module(module), name)):
            yield from within(section)


def within(section: type) -> Iterator[type]:
    yield section
    for field in fields_of(section):
        for part in sections_of(field.type):
            yield from within(part)


def is_read_by_function(kind: Any) -> bool:
    notes = getattr(kind, "__metadata__", ())
    return any(isinstance(note, Reads | Before) for note in notes) or any(map(is_read_by_function, get_args(kind)))


FOUND: Final = sorted(set(sections()) - {Section}, key=lambda section: f"{section.__module__}.{section.__name__}")


@pytest.mark.parametrize("misplaced", [MISPLACED, [MISPLACED], {MISPLACED: MISPLACED}], ids=["text", "list", "mapping"])
@pytest.mark.parametrize("section", FOUND, ids=lambda section: section.__name__)
def test_no_mistake_shows_the_content(section: type, misplaced: object) -> None:
    fields = fields_of(section)
    with pytest.raises(WrongContent) as raised:
        decode(section, {field.encode_name: misplaced for field in fields} | {"beyond": misplaced})
    checked = {field.encode_name for field in fields if is_read_by_function(field.type)}
    assert not [
        mistake
        for mistake in raised.value.mistakes
        if checked.isdisjoint(mistake.place) and MISPLACED in mistake.reason
    ]


def test_there_are_sections() -> None:
    assert len(FOUND) > 30
