"""Whether a vCenter is the one of the night: the table `tests/plan/cases/witness/vcenters.yaml`, and its invariant."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest
import yaml

from gpuops.model.nights.night_record import Original, Role
from gpuops.model.vcenter.inventory import Inventory
from gpuops.model.vcenter.vm import PowerState, Vm
from gpuops.plan.rotation.returns.day import is_returned
from gpuops.plan.rotation.witness import Evidence, Witness, is_another_vcenter, judge_vcenter, key_of

CASES: list[dict[str, Any]] = yaml.safe_load(
    (Path(__file__).parents[1] / "cases" / "witness" / "vcenters.yaml").read_text(encoding="utf-8")
)
NIGHT = "2026-11-20"
EVENING = datetime(2026, 11, 20, tzinfo=UTC)
MOMENTS = {
    "Monday": EVENING - timedelta(days=4),
    "20:10": EVENING + timedelta(hours=20, minutes=10),
    "20:14": EVENING + timedelta(hours=20, minutes=14),
    "20:20": EVENING + timedelta(hours=20, minutes=20),
    "23:00": EVENING + timedelta(hours=23),
}
POWERS = {"on": PowerState.ON, "off": PowerState.OFF, "suspended": PowerState.SUSPENDED}


def witness(number: int, vm: dict[str, Any]) -> Witness:
    """The VM of a case; every key of it is read."""
    facts = dict(vm)
    # PyYAML reads `on` and `off` as truth values
    word = {True: "on", False: "off"}.get(facts["power"], facts["power"])
    role, power, says = Role(facts.pop("role")), POWERS[word], facts.pop("says")
    facts.pop("power")
    moment = MOMENTS[facts.pop("moment")] if "moment" in facts else None
    then = MOMENTS["20:14"] if facts.pop("noted", True) else None
    original = Original(
        NIGHT, role, f"vm-{number}", f"uuid-{number}", f"vm-0{number}", "host-1", taken=facts.pop("taken", True),
        stopped=facts.pop("stopped", False),
        suspended_at=None if role is Role.ML else then, started_at=then if role is Role.ML else None,
    )  # fmt: skip
    ref = f"vm-9{number}" if facts.pop("registered_anew", False) else original.vm
    attributes = {"gpuops.rotation": f"{NIGHT} {role}"} if facts.pop("marker", False) else {}
    seen_vm = Vm(
        ref, original.name, instance_uuid=original.uuid, power=power, attributes=attributes,
        connected=not facts.pop("disconnected", False),
        suspended_at=moment if role is Role.DESKTOP else None, started_at=None if role is Role.DESKTOP else moment,
    )  # fmt: skip
    witnessed = Witness(original, seen_vm, facts.pop("task", None))
    assert facts == {}, "keys that the table does not have"
    assert witnessed.evidence is Evidence(says), (number, vm)
    return witnessed


def inventory(witnesses: list[Witness]) -> Inventory:
    return Inventory(
        vcenter="vc", api_version="8.0.3.0", taken_at=EVENING, hosts={},
        vms={account.vm.ref: account.vm for account in witnesses if account.vm is not None}, clusters={}, datastores={},
    )  # fmt: skip


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["name"])
def test_case(case: dict[str, Any]) -> None:
    assert case.keys() == {"name", "vms", "is_another", "open"}
    witnesses = [witness(number, vm) for number, vm in enumerate(case["vms"])]
    verdict = judge_vcenter(witnesses)
    assert verdict.is_another is case["is_another"]
    kept_open = [
        number for number, account in enumerate(witnesses) if key_of(account.original) in verdict.contradictions
    ]
    assert kept_open == case["open"]
    noted = [
        replace(account.original, contradiction=verdict.contradictions.get(key_of(account.original), ""))
        for account in witnesses
    ]
    assert is_another_vcenter(noted, inventory(witnesses)) is verdict.is_another
    for number in kept_open:
        assert not is_returned(noted[number], inventory(witnesses)), "the invariant: it is not closed"


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["name"])
def test_history_is_asked_only_where_it_decides(case: dict[str, Any]) -> None:
    for number, vm in enumerate(case["vms"]):
        witnessed = witness(number, vm)
        unasked = replace(witnessed, has_task=None)
        answers = {replace(witnessed, has_task=answer).evidence for answer in (True, False)}
        assert (unasked.moment_to_search is not None) is (Evidence.CONTRADICTS in answers and len(answers) == 2)


def test_one_that_agrees_is_enough_for_the_vcenter_of_the_night() -> None:
    """Whatever else is shown: a few VMs in doubt keep no other from coming back."""
    of_all = [witness(number, vm) for number, vm in enumerate(vm for case in CASES for vm in case["vms"])]
    for pair in combinations(of_all, 2):
        if any(account.evidence is Evidence.AGREES for account in pair):
            assert not judge_vcenter(pair).is_another
