"""Two runners and one lease: a runner without it starts nothing."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from itertools import combinations
from pathlib import Path

import pytest

from gpuops.errors import LeaseReverted, Locked, PartlyDone, Refused, StepFailed
from gpuops.execute.lease.lease import HeldLease, Nonces, take
from gpuops.execute.lease.lock_vm import LockVm
from gpuops.execute.rotation.rotation import restore, rotate
from gpuops.execute.rotation.rotation_lock import unlock
from gpuops.execute.runs import RunKind
from gpuops.execute.site import agreed
from gpuops.model.nights.night_record import MOST_LEASES
from gpuops.model.nights.rotation_policy import LATE
from gpuops.model.vcenter.vm import PowerState
from gpuops.plan.core.plan import Report
from gpuops.plan.core.steps import PowerOnVm, ReconfigureVm, SetAttribute, Step, SuspendVm
from gpuops.plan.rotation import lease_rules
from gpuops.plan.rotation.lease_rules import CALL_TIMEOUT_S, HEARTBEAT_S, KEY, TTL_S, Lease, lease_text, parse_lease
from tests.execute.lease.leased import LOCK, POLICY, acts, leased_world, number, powers, read_lease, revert, run, site
from tests.execute.small_vcenter import START, Killed, SmallVcenter, World, _vm, small_world


@pytest.mark.long
def test_a_night_holds_it_and_gives_it_back(world: World, tmp_path: Path) -> None:
    leases: list[Lease | None] = []
    world.on_submit = lambda step: leases.append(read_lease(world)) if isinstance(step, SuspendVm) else None
    assert run(world, RunKind.NIGHT, tmp_path / "a").exit_code == 0
    now = read_lease(world)
    assert now is not None
    assert {lease_seen.epoch for lease_seen in leases if lease_seen is not None and lease_seen.nonce} == {now.epoch}
    assert now.nonce == ""
    assert run(world, RunKind.DAY, tmp_path / "b").exit_code == 0, "another machine goes by the markers"
    assert [power for name, power in powers(world) if name.startswith("desktop")] == [PowerState.ON] * 5


def test_nobody_holds_it_while_a_question_is_asked_again(world: World, tmp_path: Path) -> None:
    run(world, RunKind.NIGHT, tmp_path)
    for vm in [vm for vm in world.vms.values() if vm.name.startswith("ml-")]:
        world._set_power(vm.ref, PowerState.OFF)
    world._set_power("vm-1", PowerState.ON)
    holders: list[str] = []

    def consent(report: Report) -> None:
        lease = read_lease(world)
        assert lease is not None
        holders.append(lease.nonce)
        world._set_power("vm-1", PowerState.SUSPENDED)  # the plan under the lock has one more step

    report = rotate(RunKind.DAY, POLICY, site(world, tmp_path), apply=True, consent=consent, asks=True)
    assert (report.exit_code, holders) == (0, ["", ""])


@pytest.mark.parametrize("kind", [RunKind.NIGHT, RunKind.DAY])
def test_whoever_holds_it_on_another_machine_is_named_and_nothing_is_done(
    world: World, tmp_path: Path, kind: RunKind
) -> None:
    take(site(world, tmp_path / "a"), LOCK, Nonces(tmp_path / "a", "vc-uuid"))
    before = len(world.requests)
    with pytest.raises(Locked, match=r"pid \d+ on .* holds the lease until 2026-11-20 21:03"):
        run(world, kind, tmp_path / "b")
    assert len(world.requests) == before


class LeasePoints:
    """Counts the points around each write of the lease, and kills the run at one of them."""

    def __init__(self, world: World, kill_at: int) -> None:
        self.world, self.kill_at, self.passed = world, kill_at, 0

    def point(self, name: str) -> None:
        written = {f"effect of {ref}" for ref, task in self.world.tasks.items() if task.step.vm == "vm-99"}
        if "vm-99" in name or any(name.endswith(text) for text in written):
            self.passed += 1
            if self.passed == self.kill_at:
                raise Killed(name)


@pytest.mark.long
@pytest.mark.parametrize("machine", ["the same", "another"])
@pytest.mark.parametrize("kind", [RunKind.NIGHT, RunKind.DAY])
def test_a_run_killed_at_any_write_of_its_lease_delays_only_other_machines_and_only_until_it_expires(
    tmp_path: Path, kind: RunKind, machine: str
) -> None:
    """No journal holds the intent of these writes: the lock VM shows what came of them."""
    kill_at, ended = 0, False
    while not ended:
        kill_at += 1
        world, state = leased_world(), tmp_path / str(kill_at)
        if kind is RunKind.DAY:
            run(world, RunKind.NIGHT, state)
        points = LeasePoints(world, kill_at)
        try:
            rotate(
                kind,
                POLICY,
                replace(site(world, state), vcenter=SmallVcenter(world, points.point)),
                apply=True,
                consent=agreed,
            )
            ended = True
        except Killed:
            world.settle()
        next_state, lease = state if machine == "the same" else tmp_path / f"{kill_at}-another", read_lease(world)
        if machine == "another" and lease is not None and lease.is_held_at(world.now):
            with pytest.raises(Locked):
                run(world, RunKind.DAY, next_state)
            world.now += timedelta(seconds=TTL_S)
        run(world, RunKind.DAY, next_state)
        if machine == "another":  # what the killed run may have sent is not called done before it can no longer arrive
            world.now += LATE
            run(world, RunKind.DAY, next_state)
        assert all(vm.power is not PowerState.SUSPENDED for vm in world.vms.values()), kill_at
    assert kill_at > 6


@pytest.mark.long
@pytest.mark.parametrize("hours", [0, 1, -1], ids=["", "its clock put on", "its clock put back"])
def test_a_lease_that_ran_out_is_taken_with_a_higher_number(world: World, tmp_path: Path, hours: int) -> None:
    take(site(world, tmp_path / "a"), LOCK, Nonces(tmp_path / "a", "vc-uuid"))
    before = number(world)
    world.now += timedelta(seconds=TTL_S + 1)
    lease_read = read_lease(world)
    assert lease_read is not None
    ahead = replace(lease_read, epoch=before + hours * 360_000, nonce="")
    world.set("vm-99", extra_config={KEY: lease_text(ahead)})
    assert run(world, RunKind.NIGHT, tmp_path / "b").exit_code == 0
    assert number(world) > max(before, ahead.epoch)


@pytest.mark.long
def test_no_two_leases_have_one_number_where_nobody_knows_of_the_first(world: World, tmp_path: Path) -> None:
    """The lock VM is reverted before the first machine has set a marker: the second one cannot know that it was."""
    take(site(world, tmp_path / "a"), LOCK, Nonces(tmp_path / "a", "vc-uuid"))
    first = number(world)
    revert(world)
    assert run(world, RunKind.NIGHT, tmp_path / "b").exit_code == 0
    assert number(world) > first


@pytest.mark.long
def test_the_same_machine_does_not_wait_for_its_own_dead_run(world: World, tmp_path: Path) -> None:
    take(site(world, tmp_path / "a"), LOCK, Nonces(tmp_path / "a", "vc-uuid"))
    assert run(world, RunKind.NIGHT, tmp_path / "a").exit_code == 0
    assert run(world, RunKind.DAY, tmp_path / "a").exit_code == 0


def test_the_leases_of_two_dead_runs_are_known_until_a_third_has_written_its_own(world: World, tmp_path: Path) -> None:
    """The second is killed before vCenter receives its lease: the lock VM still has that of the first."""
    take(site(world, tmp_path / "a"), LOCK, Nonces(tmp_path / "a", "vc-uuid"))

    def killed(name: str) -> None:
        raise Killed(name)

    second = replace(site(world, tmp_path / "a"), vcenter=SmallVcenter(world, killed))
    with pytest.raises(Killed):
        take(second, LOCK, Nonces(tmp_path / "a", "vc-uuid"))
    assert run(world, RunKind.NIGHT, tmp_path / "a").exit_code == 0


@pytest.mark.long
def test_a_lease_taken_over_in_the_night_stops_it_and_the_new_holder_returns_all(world: World, tmp_path: Path) -> None:
    """A zombie: stopped for longer than the lease, and then going on."""
    morning: list[Report] = []

    def stopped(step: Step) -> None:
        if isinstance(step, PowerOnVm) and not morning:
            world.now += timedelta(seconds=TTL_S + 1)
            other_site = site(world, tmp_path / "b")
            world.on_submit = lambda step: None
            morning.append(restore(POLICY, other_site, (), from_markers=True, apply=True, consent=agreed))
            world.on_submit = stopped

    world.on_submit = stopped
    with pytest.raises(Locked, match="nothing more was started"):
        run(world, RunKind.NIGHT, tmp_path / "a")
    [returned] = morning
    after = [act for act in acts(world) if isinstance(act, PowerOnVm)]
    assert len(after) <= 1, "at most the one that was in flight when it was stopped"
    assert returned.exit_code in (0, 4)
    # what the stopped machine sent last may still come: its VMs are named until then
    named = restore(POLICY, site(world, tmp_path / "b"), (), from_markers=True, apply=True, consent=agreed)
    assert named.exit_code == PartlyDone.exit_code
    world.now += LATE
    late = restore(POLICY, site(world, tmp_path / "b"), (), from_markers=True, apply=True, consent=agreed)
    assert late.exit_code == 0
    assert [power for name, power in powers(world) if name.startswith("desktop")] == [PowerState.ON] * 5


@pytest.mark.long
def test_it_is_renewed_while_steps_are_waited_for(world: World, tmp_path: Path) -> None:
    expiries: set[str] = set()
    numbers: set[int] = set()

    def slow(step: Step) -> None:
        if not isinstance(step, ReconfigureVm):
            world.now += timedelta(seconds=HEARTBEAT_S)
        lease_read = read_lease(world)
        if lease_read is not None and lease_read.nonce:
            expiries.add(lease_read.expires.isoformat())
            numbers.add(lease_read.epoch)

    world.on_submit = slow
    assert run(world, RunKind.NIGHT, tmp_path / "a").exit_code == 0
    assert len(expiries) > 3
    assert len(numbers) == 1


def test_a_lease_that_ran_out_by_vcenters_clock_alone_is_renewed_before_the_next_change(
    world: World, tmp_path: Path
) -> None:
    """The machine was suspended with its own clock, and no other machine has taken the lease yet."""
    mine = site(world, tmp_path / "a")
    mine.passed_s = lambda: 5000.0
    pauses: list[Step] = []
    under_expired: list[Step] = []

    def pause(step: Step) -> None:
        if isinstance(step, ReconfigureVm):
            return
        lease = read_lease(world)
        if lease is None or lease.expires <= world.now:
            under_expired.append(step)
        if isinstance(step, SuspendVm) and not pauses:
            pauses.append(step)
            world.now += timedelta(seconds=TTL_S + 1)

    world.on_submit = pause
    assert rotate(RunKind.NIGHT, POLICY, mine, apply=True, consent=agreed).exit_code == 0
    assert (len(pauses), under_expired) == (1, [])


@pytest.mark.long
def test_a_lost_reply_is_read_back_not_believed(world: World, tmp_path: Path) -> None:
    world.lose_before.add(ReconfigureVm)
    assert run(world, RunKind.NIGHT, tmp_path / "a").exit_code == 0
    world.lose_after.add(ReconfigureVm)
    assert run(world, RunKind.DAY, tmp_path / "a").exit_code == 0


@pytest.mark.long
@pytest.mark.parametrize("pause_s", [30, 400], ids=["unlocked by force", "run out"])
@pytest.mark.parametrize("kind", [SetAttribute, SuspendVm, PowerOnVm])
def test_a_paused_machine_whose_clocks_stand_still_finds_its_lease_gone(
    world: World, tmp_path: Path, kind: type[Step], pause_s: int
) -> None:
    """So many seconds of vCenter pass between two steps; another machine has taken the lease and given it back."""
    returned: list[int] = []
    began = world.now
    paused: list[datetime] = []
    mine = site(world, tmp_path / "a")
    mine.passed_s = lambda: (min([world.now, *paused]) - began).total_seconds()
    mine.clock = lambda: min([world.now, *paused])

    def pause(step: Step) -> None:
        if isinstance(step, kind) and not paused:
            paused.append(world.now)
            world.now += timedelta(seconds=pause_s)
            world.on_submit = lambda step: None
            lease_read = read_lease(world)
            assert lease_read is not None
            if pause_s < TTL_S:
                unlock(POLICY, site(world, tmp_path / "b"), lease_read.nonce, force=True)
            restore(POLICY, site(world, tmp_path / "b"), (), from_markers=True, apply=True, consent=agreed)
            returned.append(len(world.ledger))

    world.on_submit = pause
    with pytest.raises(Locked, match="nothing more was started"):
        rotate(RunKind.NIGHT, POLICY, mine, apply=True, consent=agreed)
    sent = {effect.op_id for effect in world.ledger[returned[0] :]}
    assert len(sent) <= 1 + (kind is not SetAttribute), "the one that had passed its check, and what was in flight"


@pytest.mark.long
def test_a_lease_says_who_and_until_when() -> None:
    lease = Lease("pid 1 on jump", "abc", 7, START)
    assert parse_lease(lease_text(lease)) == lease
    assert parse_lease("") is None
    for text in ("{}", "[]", "x", lease_text(lease).replace("+00:00", ""), '{"format": 1}'):
        with pytest.raises(Refused):
            parse_lease(text)


@dataclass
class Runner:
    """Its steps: look, write, then twice check and act. Each is one call to vCenter, and the other may come between."""

    world: World
    name: str
    held: HeldLease | None = None
    acted: list[int] = None  # type: ignore[assignment]
    refused: bool = False

    def steps(self) -> Iterator[None]:
        self.acted = []
        passed = lambda: (self.world.now - START).total_seconds()  # noqa: E731
        vm = LockVm(SmallVcenter(self.world), LOCK)
        lease_read = vm.look()
        began = passed()
        now = vm.seen.taken_at
        yield
        if lease_rules.holder_of(lease_read, now, ()) is not None:
            self.refused = True
            return
        next_lease = lease_rules.next_lease(lease_read, self.name, self.name, now)
        if not vm.write(next_lease):
            self.refused = True
            return
        self.held = HeldLease(vm, next_lease, began + TTL_S, passed)
        yield
        for _ in range(3):
            objection = self.held.objection()
            yield
            if objection is not None:
                return
            lease_read = read_lease(self.world)
            assert lease_read is not None
            self.acted.append(lease_read.epoch if lease_read.nonce == self.name else -lease_read.epoch)


@pytest.mark.drawn_cases(2)
@pytest.mark.long
@pytest.mark.parametrize("pause_s", [TTL_S + 1, 0.0, TTL_S / 2, TTL_S - CALL_TIMEOUT_S])
def test_every_order_of_two_runners_steps(pause_s: float) -> None:
    """`pause_s` passes before one of the steps, each in turn: as long as a process may be stopped."""
    orders = 0
    for chosen in combinations(range(12), 6):
        for paused in range(0, 12, 3):
            orders += 1
            world = small_world()
            world.vms["vm-99"] = _vm("vm-99", LOCK, "ops", "", "host-2", PowerState.OFF)
            runners = [Runner(world, "a"), Runner(world, "b")]
            going = [runner.steps() for runner in runners]
            for turn in range(12):
                if turn == paused:
                    world.now += timedelta(seconds=pause_s)
                next(going[turn in chosen], None)
            strays = [sum(epoch < 0 for epoch in runner.acted or ()) for runner in runners]
            assert sum(strays) <= 1, (chosen, paused)
            if pause_s + CALL_TIMEOUT_S < TTL_S:
                assert strays == [0, 0]
                assert sum(bool(runner.acted) for runner in runners) <= 1
    assert orders == 924 * 4


def ml_ref(world: World) -> str:
    return next(vm.ref for vm in world.vms.values() if vm.name == "ml-01")


@pytest.mark.long
def test_a_start_that_failed_and_was_made_by_hand_is_not_stopped_in_the_morning(world: World, tmp_path: Path) -> None:
    """The marker that it leaves names a lease of this machine's own journal, which knows that nothing came of it."""
    ref = ml_ref(world)
    world.failing[ref] = StepFailed("ml-01: not enough graphics resources")
    assert run(world, RunKind.NIGHT, tmp_path).exit_code == PartlyDone.exit_code
    assert world.vms[ref].attributes["gpuops.rotation"] == f"2026-11-20 ml lease={number(world)}"
    world.set(ref, power=PowerState.ON)
    report = run(world, RunKind.DAY, tmp_path)
    assert report.exit_code == 0
    assert world.power("ml-01") is PowerState.ON
    assert all("gpuops.rotation" not in vm.attributes for vm in world.vms.values())


@pytest.mark.long
@pytest.mark.long
def test_a_start_of_another_machines_night_is_stopped_after_one_of_ours_failed(world: World, tmp_path: Path) -> None:
    """The other one marked the VM anew, under a lease that this journal does not know."""
    ref = ml_ref(world)
    world.failing[ref] = StepFailed("ml-01: not enough graphics resources")
    assert run(world, RunKind.NIGHT, tmp_path / "a").exit_code == PartlyDone.exit_code
    world.failing.clear()
    assert run(world, RunKind.NIGHT, tmp_path / "b").exit_code == 0
    assert (world.power("ml-01"), world.vms[ref].attributes["gpuops.rotation"]) == (
        PowerState.ON,
        f"2026-11-20 ml lease={number(world)}",
    )
    assert run(world, RunKind.DAY, tmp_path / "a").exit_code == 0
    assert world.power("ml-01") is PowerState.OFF


@pytest.mark.long
def test_a_marker_of_a_later_lease_stops_who_is_about_to_touch_its_vm(world: World, tmp_path: Path) -> None:
    """The lock VM carries an older lease again, and its holder, who was paused, finds it there."""

    def strike(step: Step) -> None:
        if isinstance(step, SuspendVm):
            world.on_submit = lambda step: None
            for vm in list(world.vms.values()):
                world.set(vm.ref, attributes={"gpuops.rotation": f"2026-11-20 desktop lease={MOST_LEASES}"})

    world.on_submit = strike
    with pytest.raises(Locked, match=rf"a marker names lease number {MOST_LEASES}, ours is \d+"):
        run(world, RunKind.NIGHT, tmp_path)
    assert len(acts(world)) <= 1


@pytest.mark.long
@pytest.mark.long
def test_a_lease_number_that_somebody_wrote_by_hand_ends_no_return(world: World, tmp_path: Path) -> None:
    run(world, RunKind.NIGHT, tmp_path / "a")
    vm = next(vm for vm in world.vms.values() if vm.power is PowerState.SUSPENDED)
    world.set(vm.ref, attributes={"gpuops.rotation": f"2026-11-20 desktop lease={MOST_LEASES}"})
    with pytest.raises(LeaseReverted, match=f"the marker of {vm.name} has {MOST_LEASES}"):
        run(world, RunKind.NIGHT, tmp_path / "a")
    report = run(world, RunKind.DAY, tmp_path / "a")
    assert report.exit_code == 0
    assert any("is the highest possible" in text for text in report.plan.warnings)
    assert [power for name, power in powers(world) if name.startswith("desktop")] == [PowerState.ON] * 5
    assert run(world, RunKind.NIGHT, tmp_path / "a").exit_code == 0
