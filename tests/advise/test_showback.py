"""Shares of GPU-hours by owner: they add up to 100.00 %, and no hours are lost or counted twice."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuops.advise.gpu_hours import largest_remainder, owner_in, showback
from gpuops.model.nights.history import HeldPeriod, PastNight, PastVm
from gpuops.model.nights.night_record import Role
from gpuops.model.vcenter.inventory import Inventory
from gpuops.model.vcenter.owner import NOBODY, NotedOwner, OwnerKey
from gpuops.model.vcenter.vm import Vm

AT = datetime(2026, 11, 20, 20, tzinfo=UTC)
amounts = st.lists(st.floats(0, 1e6, allow_nan=False), max_size=60)


def ml(
    name: str, hours: float, *, uuid: str | None = None, by_itself: bool = False, gpus: float | None = 1.0
) -> PastVm:
    periods = (HeldPeriod(AT, AT + timedelta(hours=hours), by_itself),)
    return PastVm(f"ref-{name}", uuid or f"uuid-{name}", name, Role.ML, ("a40-48c",), gpus, periods, closed=True)


def night(*vms: PastVm) -> PastNight:
    return PastNight("2026-11-20", "vc", AT, "policy", (), vms, ())


def test_who_had_it_is_as_the_journal_noted_it_by_the_same_key() -> None:
    """A VM that is gone, or was tagged anew, is still whose it was."""
    noted = replace(ml("gone", 2), owner=NotedOwner("tag:team", "vision"))
    nowhere = Inventory("vc", "8.0.3", AT, {}, {}, {}, {})
    assert owner_in(nowhere, OwnerKey("tag", "team"))(noted) == "vision"
    assert owner_in(nowhere, OwnerKey("folder"))(noted) == NOBODY


@given(amounts)
def test_parts_add_up_to_the_whole_and_are_off_by_less_than_one(drawn_amounts: list[float]) -> None:
    parts = largest_remainder(drawn_amounts)
    if sum(drawn_amounts) <= 0:
        assert parts == [None] * len(drawn_amounts)
        return
    known_parts = [part for part in parts if part is not None]
    assert sum(known_parts) == 10_000
    for amount, part in zip(drawn_amounts, known_parts, strict=True):
        assert abs(part - 10_000 * amount / sum(drawn_amounts)) < 1 + 1e-6


@given(amounts)
def test_who_had_more_has_no_smaller_part(drawn_amounts: list[float]) -> None:
    pairs = sorted(
        zip(drawn_amounts, largest_remainder(drawn_amounts), strict=True), key=lambda pair: (pair[0], pair[1] or 0)
    )
    assert [part for _, part in pairs] == sorted((part for _, part in pairs), key=lambda part: part or 0)


@given(st.lists(st.tuples(st.sampled_from("abc"), st.floats(0.01, 20)), min_size=1, max_size=20))
def test_every_hour_is_of_one_owner(runs: list[tuple[str, float]]) -> None:
    vms = [ml(f"{owner}-{number}", hours) for number, (owner, hours) in enumerate(runs)]
    shares = showback([night(*vms)], lambda vm: vm.name[0])
    assert {owner_share.owner for owner_share in shares.owners} == {owner for owner, _ in runs}
    assert shares.hours.exact == pytest.approx(sum(hours for _, hours in runs))
    assert sum(owner_share.hundredths or 0 for owner_share in shares.owners) == 10_000
    assert sum(owner_share.vms for owner_share in shares.owners) == len(runs) == len(shares.runs)


def test_hours_that_are_not_certain_are_said_to_be_at_least() -> None:
    shares = showback([night(ml("a", 2), ml("b", 3, by_itself=True), ml("c", 1, gpus=None))], lambda vm: vm.name)
    hours = {
        owner_share.owner: (owner_share.hours.at_least, owner_share.hours.exact, owner_share.percent)
        for owner_share in shares.owners
    }
    assert hours == {"a": (2.0, 2.0, 100.0), "b": (0.0, None, 0.0), "c": (0.0, None, 0.0)}
    assert showback([night(ml("b", 3, by_itself=True))], lambda vm: vm.name).owners[0].percent is None


def test_owners_by_folder_tag_and_attribute_as_vcenter_shows_the_vm_now() -> None:
    vm = Vm(
        "vm-9", "ml-01", "/dc/vm/ml/team-a/ml-01", "uuid-1", attributes={"owner": " ann "},
        tags=("team:blue", "team:red", "tier:gold"),
    )  # fmt: skip
    inventory = Inventory("vc", "8.0.3.0", AT, vms={vm.ref: vm})
    past = ml("old-name", 1, uuid="uuid-1")
    owners = {
        str(key): owner_in(inventory, key)(past)
        for key in (OwnerKey(), OwnerKey("tag", "team"), OwnerKey("attribute", "owner"), OwnerKey("tag", "none"))
    }
    assert owners == {"folder": "ml/team-a", "tag:team": "blue, red", "attribute:owner": "ann", "tag:none": NOBODY}
    assert owner_in(inventory, OwnerKey())(ml("gone", 1)) == NOBODY


def test_another_vm_with_the_id_of_one_that_is_gone_is_not_its_owner() -> None:
    other_vm = Vm("ref-ml-01", "web", "/dc/vm/web/web", "uuid-2")
    inventory = Inventory("vc", "8.0.3.0", AT, vms={other_vm.ref: other_vm})
    assert owner_in(inventory, OwnerKey())(ml("ml-01", 1)) == NOBODY
