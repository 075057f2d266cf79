"""Files with one mistake are refused in one line that names the file, the place and the reason, and repeats no secret.

Functions that read a value quote it only for keys that never hold a password (a zone, a time)."""

from __future__ import annotations

from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from pkgutil import resolve_name, walk_packages
from typing import Annotated, Any, Final, get_args

import pytest
import yaml
from msgspec import Meta

import gpuops.config
from gpuops.cli.first_steps.schema import INPUTS
from gpuops.config.decoding import Section, WrongContent, decode, fields_of, is_section, sections_of
from gpuops.errors import PolicyError
from gpuops.model.file_keys import Before, Reads

KINDS: Final[dict[str, Any]] = yaml.safe_load((Path(__file__).parent / "cases" / "file-mistakes.yaml").read_text())

MISTAKES: Final = [
    pytest.param(kind["read_by"], kind["right"], mistake, kind.get("next", ""), id=f"{name}: {mistake['says']}")
    for name, kind in KINDS.items()
    for mistake in kind["mistakes"]
]


@pytest.mark.parametrize(("read_by", "right", "mistake", "next_move"), MISTAKES)
def test_a_mistake_is_one_line(read_by: str, right: str, mistake: dict[str, str], next_move: str) -> None:
    replaced = mistake.get("replace", right)
    assert replaced in right
    with pytest.raises(PolicyError) as refused:
        resolve_name(read_by)(right.replace(replaced, mistake["by"]), "mine")
    assert refused.value.message.startswith(f"mine: {mistake['says']}")
    assert "\n" not in refused.value.line
    assert next_move in (refused.value.hint or "")


@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
def test_without_the_mistake_it_is_read(kind: dict[str, Any]) -> None:
    assert resolve_name(kind["read_by"])(kind["right"], "mine")


class LimitedSection(Section):
    """Keys with limits on unions."""

    number: Annotated[int | None, Meta(ge=1)] = None
    names: Annotated[tuple[str, ...] | str, Meta(min_length=1)] = "x"


@pytest.mark.parametrize("content", [{"number": None}, {"number": 1}, {"names": ["a"]}, {"names": "a"}])
def test_an_option_within_the_limits_is_accepted(content: dict[str, object]) -> None:
    decode(LimitedSection, content)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({"number": 0}, "number: should be 1 or more"),
        ({"names": ""}, "names: should not be empty"),
        ({"names": []}, "names: should not be an empty list"),
    ],
)
def test_an_option_beyond_the_limits_is_refused(content: dict[str, object], message: str) -> None:
    with pytest.raises(WrongContent, match=message):
        decode(LimitedSection, content)


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
