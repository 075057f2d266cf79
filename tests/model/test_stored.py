"""What is stored has names of its own: all of them are in a table, and each is read again under any name in Python.

`stored_names.yaml` is that table. A line that changes there is a journal that an earlier version cannot read.
Values are decoded without tags: a class is chosen by its fields, and a mistake is named with its place."""

from __future__ import annotations

import ast
import dataclasses
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import Enum
from functools import cache
from importlib import import_module
from pathlib import Path
from types import ModuleType, NoneType, UnionType
from typing import Annotated, Any, Final, Literal, Union, get_args, get_origin, get_type_hints

import msgspec
import pytest
from msgspec import Meta

import gpuops
from gpuops.files.yaml_file import parse_yaml
from gpuops.model.stored import NOT_STORED, from_stored, names_of, stored_as, stored_name, to_stored
from gpuops.model.stored_json import NotDecoded, decode_stored, json_text, json_values

PACKAGE: Final = Path(gpuops.__file__).parent

TABLE: Final[Any] = parse_yaml(
    (Path(__file__).parent / "stored_names.yaml").read_text(encoding="utf-8"), "stored_names.yaml"
)

MOMENT: Final = datetime(2026, 11, 20, 21, 30, 5, 250_000, tzinfo=UTC)


def modules_with(text: str) -> Iterator[ModuleType]:
    """The modules of gpuops whose source has this text, but for the simulator, which keeps no user's state."""
    for file in sorted(PACKAGE.rglob("*.py")):
        place = file.relative_to(PACKAGE.parent).with_suffix("")
        if "sim" not in place.parts and "ansible_collections" not in place.parts and text in file.read_text("utf-8"):
            yield import_module(".".join(place.parts).removesuffix(".__init__"))


@cache
def stored_classes() -> tuple[type, ...]:
    """Every class that has stored names, as the sources have them."""
    members = [member for module in modules_with("@stored_as(") for member in vars(module).values()]
    return tuple(
        dict.fromkeys(
            candidate for candidate in members if isinstance(candidate, type) and "__stored_names__" in vars(candidate)
        )
    )


def types_in(hint: Any) -> Iterator[type]:
    """The classes that a field of this type may hold, however deep they are in tuples, mappings and unions."""
    if isinstance(hint, type) and not get_args(hint):
        yield hint
    for argument in get_args(hint) if get_origin(hint) is not Literal else ():
        yield from types_in(argument)


def field_types(kind: type) -> Iterator[tuple[str, type]]:
    """Stored name of each field, and each class that it may hold."""
    hints = get_type_hints(kind)
    for field, stored in names_of(kind).fields.items():
        for type_of_field in types_in(hints[field]):
            yield stored, type_of_field


def example(hint: Any, number: int = 1) -> Any:
    """A value of this type; another number gives another value where the type has one."""
    plain = {
        str: f"text {number}", bool: bool(number % 2), int: number, float: number + 0.5, object: f"any {number}",
        datetime: MOMENT + timedelta(hours=number), timedelta: timedelta(seconds=90 * number + 0.5),
    }  # fmt: skip
    if hint in plain:
        return plain[hint]
    arguments = [argument for argument in get_args(hint) if argument not in (Ellipsis, NoneType)]
    match get_origin(hint):
        case origin if origin is Literal:
            return arguments[0]
        case origin if origin in (Union, UnionType):
            return example(arguments[number % len(arguments)], number)
        case origin if origin in (tuple, frozenset):
            return origin(example(argument, number) for argument in arguments)
        case origin if isinstance(origin, type) and issubclass(origin, Mapping):
            return {example(arguments[0], number): example(arguments[1], number)}
        case _:
            pass
    if isinstance(hint, type) and issubclass(hint, Enum):
        return list(hint)[number % len(hint)]
    hints = get_type_hints(hint)
    return hint(**{name: example(hints[name], at) for at, name in enumerate(names_of(hint).fields, number)})


@pytest.fixture(params=stored_classes(), ids=lambda kind: kind.__name__)
def kind(request: pytest.FixtureRequest) -> type:
    """Each class with stored names, one per test."""
    stored_class: type = request.param
    return stored_class


def test_the_table_has_every_stored_class_and_its_fields_in_their_order() -> None:
    declared = [
        (
            stored_name(stored_class),
            [
                names_of(stored_class).fields[f.name]
                for f in dataclasses.fields(stored_class)
                if f.metadata != NOT_STORED
            ],
        )
        for stored_class in stored_classes()
    ]
    assert len(dict(declared)) == len(declared), "two classes have one stored name"
    assert dict(declared) == {name: fields.split() for name, fields in TABLE["classes"].items()}


def test_the_table_has_every_value_of_a_stored_choice() -> None:
    declared: dict[str, list[Any]] = {}
    for stored_class in stored_classes():
        for field, choice in field_types(stored_class):
            if issubclass(choice, Enum):
                declared.setdefault(f"{stored_name(stored_class)} {field}", []).extend(
                    member.value for member in choice
                )
    assert declared == TABLE["choices"]


def test_a_class_within_a_stored_one_has_stored_names_too(kind: type) -> None:
    unnamed = [
        field_type
        for _, field_type in field_types(kind)
        if dataclasses.is_dataclass(field_type) or hasattr(field_type, "_fields")
    ]
    for unnamed_type in unnamed:
        names_of(unnamed_type)


def test_whatever_is_decoded_has_stored_names() -> None:
    written = [
        (module, call.args[0].id)
        for module in modules_with("decode_stored(")
        for call in ast.walk(ast.parse(Path(str(module.__file__)).read_text(encoding="utf-8")))
        if isinstance(call, ast.Call)
        and ast.unparse(call.func) == "decode_stored"
        and isinstance(call.args[0], ast.Name)
    ]
    classes = [getattr(module, name) for module, name in written if hasattr(module, name)]
    assert len(classes) >= 2, "measurements and saved inventories"
    for stored_class in classes:
        names_of(stored_class)


def test_every_stored_name_is_written_and_read(kind: type) -> None:
    names = names_of(kind).fields
    for value in (example(kind, 1), example(kind, 2)):
        written = json.loads(msgspec.json.encode(to_stored(value)))
        assert list(written) == TABLE["classes"][stored_name(kind)].split()
        assert decode_stored(kind, written) == value
        assert from_stored(kind, {stored: getattr(value, field) for field, stored in names.items()}) == value


def test_a_renamed_class_with_renamed_fields_is_stored_as_before(kind: type) -> None:
    hints, value = get_type_hints(kind), example(kind)
    fields_as = {f"renamed_{field}": stored for field, stored in names_of(kind).fields.items()}
    declared = [(f"renamed_{field}", hints[field]) for field in names_of(kind).fields]
    plain = dataclasses.make_dataclass("Renamed", declared, frozen=True)
    renamed: type = stored_as(stored_name(kind), **fields_as)(plain)
    renamed_object = renamed(**{f"renamed_{field}": getattr(value, field) for field in names_of(kind).fields})

    assert stored_name(renamed) == stored_name(kind)
    written = msgspec.json.encode(to_stored(value))
    assert msgspec.json.encode(to_stored(renamed_object)) == written
    assert decode_stored(renamed, json.loads(written)) == renamed_object
    assert to_stored(renamed_object) == {
        stored: to_stored(getattr(value, field)) for field, stored in names_of(kind).fields.items()
    }


def test_the_book_of_pools_is_read_under_renamed_fields_at_any_depth() -> None:
    @stored_as("Share", of="server")
    @dataclasses.dataclass(frozen=True)
    class Share:
        of: str

    @stored_as("Lent", until="ends_at", parts="shares", by_owner="quotas", next_one="follows")
    @dataclasses.dataclass(frozen=True)
    class Lent:
        until: datetime
        parts: tuple[Share, ...]
        by_owner: Mapping[str, Share]
        next_one: Share | None

    hints = {"parts": tuple[Share, ...], "by_owner": Mapping[str, Share], "next_one": Share | None, "until": datetime}
    Lent.__annotations__ = hints
    Share.__annotations__ = {"of": str}
    lent = Lent(MOMENT, (Share("a"), Share("b")), {"team": Share("c")}, Share("d"))
    text = msgspec.json.encode(to_stored(lent))
    assert msgspec.json.decode(text) == {
        "ends_at": "2026-11-20T21:30:05.250000Z",
        "shares": [{"server": "a"}, {"server": "b"}],
        "quotas": {"team": {"server": "c"}},
        "follows": {"server": "d"},
    }
    assert decode_stored(Lent, msgspec.json.decode(text)) == lent
    later = {**msgspec.json.decode(text), "of_a_later_version": 1}
    assert decode_stored(Lent, later) == lent


def test_a_field_is_stored_under_its_own_name_unless_it_is_given_another() -> None:
    kind: type = dataclasses.make_dataclass("Move", [("vm", str), ("host", str)])
    named: type = stored_as("Move", host="target")(kind)
    assert to_stored(named("vm-1", "host-1")) == {"vm": "vm-1", "target": "host-1"}


@pytest.mark.parametrize(
    ("fields_as", "mistake"),
    [({"more": "more"}, "names no stored field: more"), ({"host": "vm"}, "gives two fields one name")],
)
def test_a_stored_name_without_a_field_or_for_two_fields_is_refused(fields_as: dict[str, str], mistake: str) -> None:
    kind = dataclasses.make_dataclass("Move", [("vm", str), ("host", str)])
    with pytest.raises(TypeError, match=mistake):
        stored_as("Move", **fields_as)(kind)


def test_a_class_does_not_inherit_stored_names() -> None:
    base: type = stored_as("Move", vm="vm")(dataclasses.make_dataclass("Move", [("vm", str)]))
    derived = dataclasses.make_dataclass("Derived", [("host", str)], bases=(base,))
    with pytest.raises(TypeError, match="Derived has no stored names"):
        names_of(derived)


@pytest.mark.parametrize("body", [{"vm": "vm-1", "gone": 1}, ["vm-1"]])
def test_what_another_version_stored_is_refused_where_it_always_was(body: Any) -> None:
    kind: type = stored_as("Move", vm="vm")(dataclasses.make_dataclass("Move", [("vm", str)]))
    with pytest.raises(TypeError, match="stored field"):
        from_stored(kind, body)


def test_the_files_of_diagnoses_have_names_of_their_own() -> None:
    from gpuops.extras.diagnosis import diagnoses

    structs = [
        struct for struct in vars(diagnoses).values() if isinstance(struct, type) and issubclass(struct, msgspec.Struct)
    ]
    source = Path(diagnoses.__file__).read_text(encoding="utf-8")
    assert {frozenset(struct.__struct_encode_fields__) for struct in structs} == {
        frozenset(("component", "probability", "evidence", "by_rule")),
        frozenset(("vcenter", "vm", "at", "suspects")),
        frozenset(("found", "of", "named")),
    }
    assert len(re.findall(r"rename=\{", source)) == len(structs)


@stored_as("Slice", length="ms")
@dataclass(frozen=True)
class Slice:
    length: int
    strict: bool = False


@stored_as("Rate")
@dataclass(frozen=True)
class Rate:
    per_s: int
    strict: bool = False


@stored_as("Gpu")
@dataclass(frozen=True)
class Gpu:
    schedule: Slice | Rate | None
    port: Annotated[int, Meta(le=10)] = 1


@stored_as("Fleet")
@dataclass(frozen=True)
class Fleet:
    gpus: Mapping[str, tuple[Gpu, ...]]
    seen: datetime | None = None


class Long(int):
    """As pyVmomi has it for numbers of 64 bits."""


FLEET = Fleet({"esx-01": (Gpu(Slice(5)), Gpu(Rate(7, strict=True)), Gpu(None))}, datetime(2026, 11, 2, 18, tzinfo=UTC))


def test_a_class_is_chosen_by_its_fields() -> None:
    stored = json_values(to_stored(FLEET))
    assert stored["gpus"]["esx-01"][0] == {"schedule": {"ms": 5, "strict": False}, "port": 1}
    assert decode_stored(Fleet, stored) == FLEET


def test_what_earlier_versions_accepted_and_later_ones_add_is_read() -> None:
    assert decode_stored(Gpu, {"schedule": {"per_s": 2.0, "strict": 1, "new": []}, "port": 70}) == Gpu(
        Rate(2, True), 70
    )


def test_a_number_of_pyvmomi_is_written_as_one() -> None:
    stored = to_stored(Gpu(None, Long(3)))
    assert json_values(stored) == {"schedule": None, "port": 3}
    assert json_text(stored) == '{"schedule":null,"port":3}'


@pytest.mark.parametrize(
    ("stored", "mistake"),
    [
        ([], "Expected object, got array"),
        ({}, "Object missing required field gpus"),
        ({"gpus": 5}, "gpus: Expected object, got int"),
        ({"gpus": {"esx-01": {}}}, "gpus.esx-01: Expected array, got object"),
        ({"gpus": {"esx-01": [{"schedule": None}, {}]}}, "gpus.esx-01.1: Object missing required field schedule"),
        ({"gpus": {"esx-01": [{"schedule": "x"}]}}, "gpus.esx-01.0.schedule: Expected object, got str"),
        ({"gpus": {"esx-01": [{"schedule": {"per_s": "x"}}]}}, "gpus.esx-01.0.schedule.per_s: Expected int, got str"),
        ({"gpus": {}, "seen": "today"}, "seen: Invalid RFC3339 encoded datetime"),
    ],
)
def test_a_mistake_has_its_place(stored: Any, mistake: str) -> None:
    with pytest.raises(NotDecoded) as caught:
        decode_stored(Fleet, stored)
    assert str(caught.value) == mistake
