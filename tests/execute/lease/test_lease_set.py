"""A morning of several nights whose policies have lock VMs of their own: each VM is returned under its own lease."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest

from gpuops.config.policy import parse_policy
from gpuops.errors import Locked
from gpuops.execute.journal import Journal
from gpuops.execute.lease.lease import Nonces, take
from gpuops.execute.rotation.rotation import restore, rotate
from gpuops.execute.runs import NightVms, RunKind
from gpuops.execute.site import Site, agreed
from gpuops.model.nights.rotation_policy import Policy
from gpuops.model.vcenter.vm import PowerState
from gpuops.plan.core.plan import Report
from gpuops.plan.core.steps import PowerOffVm, ResumeVm, SetAttribute, ShutDownGuest
from gpuops.plan.rotation.lease_rules import KEY, TTL_S, Lease, lease_text, parse_lease
from tests.execute.nights import POLICY_TEXT
from tests.execute.small_vcenter import START, Killed, SmallVcenter, World, _vm, small_world

LOCKS = {"one": "lock-one", "two": "lock-two"}
RETURNING = ResumeVm | PowerOffVm | ShutDownGuest | SetAttribute


def policy(name: str, desktops: str, ml: str, lock_vm: str = "") -> Policy:
    text = POLICY_TEXT.replace("name: small", f"name: {name}").replace("desktop-*", desktops)
    text = text.replace("[{vm: ml-01}, {vm: ml-02}]", f"[{{vm: {ml}}}]")
    return parse_policy(text + f"lock_vm: {lock_vm or LOCKS[name]}\n", name)


ONE, TWO = policy("one", "desktop-0[12]", "ml-01"), policy("two", "desktop-0[345]", "ml-02")
OF_ONE = {"desktop-01", "desktop-02", "ml-01"}


@pytest.fixture
def world() -> World:
    small = small_world()
    small.hosts["host-2"] = replace(small.hosts["host-2"], in_maintenance=True)  # every start needs a desktop's GPU
    [second] = [vm for vm in small.vms.values() if vm.name == "ml-02"]
    small.set(second.ref, host="host-1")
    for number, name in enumerate((*LOCKS.values(), "lock-three"), 97):
        small.vms[f"vm-{number}"] = _vm(f"vm-{number}", name, "ops", "", "host-2", PowerState.OFF)
    return small


@pytest.fixture
def nights(world: World, tmp_path: Path) -> World:
    """The night of each policy has taken what it could."""
    for policy in (ONE, TWO):
        assert run(world, RunKind.NIGHT, tmp_path / "a", policy).exit_code == 0
    assert {name for name, power in powers(world).items() if power is PowerState.SUSPENDED} >= {
        "desktop-01",
        "desktop-03",
    }
    return world


def site(world: World, state_dir: Path) -> Site:
    """A process of one machine; its own clock goes as vCenter's does, from another beginning."""
    return Site(SmallVcenter(world), state_dir, world.tick, passed_s=lambda: (world.now - START).total_seconds() + 5000)


def run(world: World, kind: RunKind, state_dir: Path, policy: Policy | None = None) -> Report:
    return rotate(kind, policy, site(world, state_dir), apply=True, consent=agreed)


def powers(world: World) -> dict[str, PowerState | None]:
    return {vm.name: vm.power for vm in world.vms.values()}


def lease_on(world: World, name: str) -> Lease | None:
    [vm] = [vm for vm in world.vms.values() if vm.name == name]
    return parse_lease((vm.extra_config or {}).get(KEY, ""))


def is_held(world: World, name: str) -> bool:
    lease = lease_on(world, name)
    return lease is not None and bool(lease.nonce)


def elsewhere(world: World, tmp_path: Path, name: str) -> None:
    """Another machine takes the lease."""
    take(site(world, tmp_path / "b"), name, Nonces(tmp_path / "b", "vc-uuid"))


def as_before(world: World, names: set[str] | None = None) -> bool:
    expected_names = {
        name: PowerState.ON if name.startswith("desktop") else PowerState.OFF
        for name in powers(world)
        if names is None or name in names
    }
    return {name: powers(world)[name] for name in expected_names} == expected_names


def test_each_vm_is_returned_under_the_lease_of_its_night(nights: World, tmp_path: Path) -> None:
    under: list[tuple[str, list[bool]]] = []

    def sent(step: object) -> None:
        if isinstance(step, RETURNING):
            under.append((nights.vms[step.vm].name, [is_held(nights, name) for name in LOCKS.values()]))

    nights.on_submit = sent
    assert run(nights, RunKind.DAY, tmp_path / "a").exit_code == 0
    assert as_before(nights)
    assert {name for name, _ in under} >= {"desktop-01", "desktop-03", "ml-01"}
    assert all(is_of_one for name, (is_of_one, _) in under if name in OF_ONE)
    assert all(two for name, (_, two) in under if name not in OF_ONE)
    assert not any(is_held(nights, name) for name in LOCKS.values()), "given back"
    journal = Journal.open(tmp_path / "a", "vc-uuid", nights.tick)
    leases = [lease_on(nights, name) for name in LOCKS.values()]
    assert [journal.lease_number(name) for name in LOCKS.values()] == [
        lease_read and lease_read.epoch for lease_read in leases
    ]
    journal.close()


def test_a_lease_that_another_machine_holds_keeps_its_own_night_away_alone(nights: World, tmp_path: Path) -> None:
    elsewhere(nights, tmp_path, "lock-one")
    before = {name: power for name, power in powers(nights).items() if name in OF_ONE}
    report = run(nights, RunKind.DAY, tmp_path / "a")
    assert report.exit_code == 4
    assert as_before(nights, set(powers(nights)) - OF_ONE)
    assert {name: powers(nights)[name] for name in before} == before, "not touched"
    named = {refusal.subject: refusal for refusal in report.plan.unmet}
    assert named.keys() == {name for name in before if not as_before(nights, {name})}
    assert "lock VM lock-one: pid" in named["desktop-01"].rule
    assert named["desktop-01"].hint == "wait for that run to end, then gpuops rotate day"
    assert any(line.startswith("lock VM lock-one: pid") for line in report.plan.warnings)
    nights.now += timedelta(seconds=TTL_S + 1)
    assert run(nights, RunKind.DAY, tmp_path / "a").exit_code == 0
    assert as_before(nights)


def test_a_desktop_of_a_night_that_another_machine_returns_stays_open_though_it_runs(
    nights: World, tmp_path: Path
) -> None:
    """The other machine may be about to change it again."""
    [desktop] = [vm for vm in nights.vms.values() if vm.name == "desktop-01"]
    [ml] = [vm for vm in nights.vms.values() if vm.name == "ml-01"]
    nights._set_power(ml.ref, PowerState.OFF)
    nights._set_power(desktop.ref, PowerState.ON)
    elsewhere(nights, tmp_path, "lock-one")
    assert run(nights, RunKind.DAY, tmp_path / "a").exit_code == 4
    assert "desktop-01" in open_vms(nights, tmp_path)
    nights.now += timedelta(seconds=TTL_S + 1)
    assert run(nights, RunKind.DAY, tmp_path / "a").exit_code == 0
    assert open_vms(nights, tmp_path) == set()


def open_vms(world: World, tmp_path: Path) -> set[str]:
    journal = Journal.open(tmp_path / "a", "vc-uuid", world.tick)
    try:
        return {original.name for original in NightVms(journal).all()}
    finally:
        journal.close()


def test_where_others_hold_every_lease_nothing_is_done(nights: World, tmp_path: Path) -> None:
    for name in LOCKS.values():
        elsewhere(nights, tmp_path, name)
    before = len(nights.requests)
    with pytest.raises(Locked, match="holds the lease until"):
        run(nights, RunKind.DAY, tmp_path / "a")
    assert len(nights.requests) == before


def test_a_restore_of_one_night_does_not_wait_for_another(nights: World, tmp_path: Path) -> None:
    elsewhere(nights, tmp_path, "lock-one")
    where = site(nights, tmp_path / "a")
    refused = restore(None, where, ("desktop-01",), from_markers=False, apply=True, consent=agreed)
    assert [refusal.subject for refusal in refused.plan.unmet] == ["desktop-01"]
    assert refused.exit_code == 4
    restored = restore(None, where, ("desktop-03",), from_markers=False, apply=True, consent=agreed)
    assert restored.plan.unmet == ()
    assert "desktop-03" in {nights.vms[outcome.step.vm].name for outcome in restored.outcomes}


def test_a_lease_that_is_lost_on_the_way_stops_its_own_night_alone(nights: World, tmp_path: Path) -> None:
    first_steps: list[object] = []

    def stolen(step: object) -> None:
        if isinstance(step, RETURNING) and not first_steps:
            first_steps.append(step)
            [lock] = [vm for vm in nights.vms.values() if vm.name == "lock-one"]
            lease_read = parse_lease((lock.extra_config or {})[KEY])
            assert lease_read is not None
            nights.set(lock.ref, extra_config={KEY: lease_text(replace(lease_read, epoch=lease_read.epoch + 1))})

    nights.on_submit = stolen
    report = run(nights, RunKind.DAY, tmp_path / "a")
    assert report.exit_code == 4
    assert as_before(nights, set(powers(nights)) - OF_ONE)
    assert not as_before(nights, OF_ONE)
    reasons = {outcome.reason for outcome in report.outcomes if nights.vms[outcome.step.vm].name in OF_ONE}
    assert any("the lease on the lock VM is not ours any more" in reason for reason in reasons)


def test_a_lock_vm_that_is_gone_keeps_nobody_away(nights: World, tmp_path: Path) -> None:
    [lock] = [ref for ref, vm in nights.vms.items() if vm.name == "lock-one"]
    del nights.vms[lock]
    report = run(nights, RunKind.DAY, tmp_path / "a")
    assert report.exit_code == 0
    assert as_before(nights)
    assert any("lock_vm: no VMs are called lock-one" in line for line in report.plan.warnings)


def test_a_marker_that_the_journal_does_not_know_is_returned_under_the_lease_of_who_speaks_for_it(
    world: World, tmp_path: Path
) -> None:
    assert run(world, RunKind.NIGHT, tmp_path / "a", ONE).exit_code == 0
    three = policy("three", "desktop-05", "ml-09", "lock-three")
    [vm] = [vm for vm in world.vms.values() if vm.name == "desktop-05"]
    world.set(vm.ref, power=PowerState.SUSPENDED, attributes={"gpuops.rotation": "2026-11-20 desktop lease=1"})
    under: dict[str, list[bool]] = {}

    def sent(step: object) -> None:
        if isinstance(step, ResumeVm):
            held_locks = [is_held(world, name) for name in ("lock-one", "lock-three")]
            under[world.vms[step.vm].name] = held_locks

    world.on_submit = sent
    assert run(world, RunKind.DAY, tmp_path / "a", three).exit_code == 0
    assert as_before(world)
    assert under["desktop-01"][0]
    assert under["desktop-05"][1]


def test_what_a_killed_morning_left_on_each_is_known_to_be_its_own(nights: World, tmp_path: Path) -> None:
    def killed(step: object) -> None:
        if isinstance(step, RETURNING):
            raise Killed("in the morning")

    nights.on_submit = killed
    with pytest.raises(Killed):
        run(nights, RunKind.DAY, tmp_path / "a")
    assert [is_held(nights, name) for name in LOCKS.values()] == [True, True]
    nights.on_submit = lambda step: None
    assert run(nights, RunKind.DAY, tmp_path / "a").exit_code == 0, "it does not wait for leases of its own dead run"
    assert as_before(nights)
