"""Stored values are decoded without tags: a class is chosen by its fields, and a mistake is named with its place."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Annotated, Any

import pytest
from msgspec import Meta

from gpuops.model.stored import stored_as, to_stored
from gpuops.model.stored_json import NotDecoded, decode_stored, json_text, json_values


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
