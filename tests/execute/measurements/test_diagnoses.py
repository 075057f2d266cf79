"""What is kept of diagnoses, and what is read of it again."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path

import pytest

from gpuops.errors import StateDamaged
from gpuops.extras.diagnosis.answer import Suspect
from gpuops.extras.diagnosis.case import Component
from gpuops.extras.diagnosis.diagnoses import Diagnoses
from gpuops.extras.diagnosis.made_cases import made_cases

NOW = datetime(2026, 11, 2, 18, tzinfo=UTC)


def suspects_of(component: Component) -> list[Suspect]:
    return [Suspect(component, 0.9, (), by_rule=False)]


def test_what_is_confirmed_is_what_the_last_model_said(tmp_path: Path) -> None:
    diagnoses, case = Diagnoses(tmp_path), next(iter(made_cases(3, 1))).case
    name = diagnoses.note("vc", "vm-1", case, suspects_of(Component.NETWORK), NOW)
    assert diagnoses.note("vc", "vm-1", case, suspects_of(Component.DATASTORE), NOW) == name, (
        "the same numbers are the same diagnosis"
    )
    assert diagnoses.settle(name, None) == (Component.DATASTORE,)
    diagnoses.note("vc", "vm-1", case, suspects_of(Component.CPU_READY), NOW)
    [settled] = diagnoses.confirmed_cases()
    assert settled.at_fault == {Component.DATASTORE}, "what people found stays, whatever a later model says"


@pytest.mark.parametrize("damage", [{"found": ["no-such"]}, {"found": 5}, {"case": {"name": "a"}}])
def test_a_kept_diagnosis_that_is_damaged_is_named(tmp_path: Path, damage: dict[str, object]) -> None:
    diagnoses, case = Diagnoses(tmp_path), next(iter(made_cases(3, 1))).case
    name = diagnoses.note("vc", "vm-1", case, suspects_of(Component.NETWORK), NOW)
    diagnoses.settle(name, None)
    path = tmp_path / "diagnosis" / "cases" / f"{name}.json"
    path.write_text(json.dumps({**json.loads(path.read_text(encoding="utf-8")), **damage}), encoding="utf-8")
    with pytest.raises(StateDamaged, match=f"{name}.json cannot be read"):
        diagnoses.confirmed_cases()
