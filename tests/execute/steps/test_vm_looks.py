"""A VM is looked at just before it is touched, and what was read a while ago is read again."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from functools import partial

import pytest
from pytest_mock import MockerFixture

from gpuops.execute.journal import Journal, Run
from gpuops.execute.steps.step_executor import StepInFlight
from gpuops.execute.steps.vm_executor import VmExecutor
from gpuops.execute.steps.vm_looks import COUNTED_MAX_AGE, LOOK_S
from gpuops.model.desktops.evidence import SessionCount, Source
from gpuops.model.measurements.measurement import CPU_MHZ, CounterWindow
from gpuops.model.nights.rotation_policy import IdleRule, Policy, Pool
from gpuops.model.nights.selector import Mark, Selector
from gpuops.model.vcenter.inventory import Inventory
from gpuops.model.vcenter.vm import PowerState, Vm
from gpuops.plan.core.plan import Outcome, Verdict
from gpuops.plan.core.steps import SetAttribute, ShutDownGuest, Step, SuspendVm
from gpuops.plan.rotation.nights.guard import Guard
from gpuops.plan.rotation.nights.night_refusals import StepCounts
from tests.execute.small_vcenter import SmallVcenter, World
from tests.execute.steps.guarded_steps import CATALOG, DESKTOPS, NIGHT, QUEUE, Do


def test_who_counts_towards_a_floor_is_looked_at_pool_by_pool(world: World, journal: Journal) -> None:
    """A look before a step of one pool, or before a marker is set, tells nothing of the other pools."""
    pools = (
        Pool("first", Selector(name="desktop-0[12]"), IdleRule(500), parked=True, floor=1),
        Pool("second", Selector(name="desktop-0[34]"), IdleRule(500), parked=True, floor=1),
    )
    guard = Guard(Policy("small", pools), StepCounts(4), CATALOG)
    executor = VmExecutor(SmallVcenter(world), journal, journal.begin("test"), world.snapshot(), guard=guard)
    world.now += 2 * COUNTED_MAX_AGE
    executor.look(["vm-1"])  # vCenter's time is known now
    for ref in ("vm-2", "vm-4"):
        world.set(ref, name=f"{executor.planned.vm(ref).name}-renamed")
    executor.look_before([SuspendVm("vm-1")])
    executor.look_before([SetAttribute("vm-3", "gpuops.rotation", "x")])
    assert executor.inventory.vm("vm-2").name == "desktop-02-renamed"
    assert executor.inventory.vm("vm-4").name == "desktop-04"
    executor.look_before([SuspendVm("vm-3")])
    assert executor.inventory.vm("vm-4").name == "desktop-04-renamed"


def test_desktops_that_wake_up_while_the_night_goes_on_stop_it_in_their_pool(world: World, journal: Journal) -> None:
    """Each minute those that the night has taken are looked at too."""
    woken_refs = frozenset({"vm-2", "vm-3", "vm-4"})
    for ref in woken_refs:
        world.set(ref, power=PowerState.SUSPENDED)
    pool = Pool("all", Selector(name="desktop-*"), IdleRule(500), parked=True)
    guard = Guard(Policy("small", (pool,)), StepCounts(4), CATALOG, taken_before=woken_refs)
    executor = VmExecutor(SmallVcenter(world), journal, journal.begin("test"), world.snapshot(), guard=guard)
    for ref in woken_refs:
        world.set(ref, power=PowerState.ON)
    world.now += 2 * COUNTED_MAX_AGE
    executor.look(["vm-1"])  # vCenter's time is known now
    executor.look_before([SuspendVm("vm-1")])
    outcome = executor.begin(SuspendVm("vm-1"))
    assert isinstance(outcome, Outcome)
    assert (outcome.verdict, outcome.reason) == (
        Verdict.SKIPPED,
        "3 desktops of its pool came back by themselves tonight: no more of it are taken",
    )
    assert world.requests == []


def test_each_of_several_is_looked_at_when_those_before_it_were_sent(world: World, journal: Journal) -> None:
    """Whatever the clocks of this machine say: one that stood still in between has sent one request at most."""
    executor = VmExecutor(
        SmallVcenter(world), journal, journal.begin("test"), world.snapshot(), guard=NIGHT, passed_s=lambda: 0
    )
    executor.look_before([SuspendVm("vm-1"), SuspendVm("vm-2")])
    looks = world.looks
    assert isinstance(executor.begin(SuspendVm("vm-1")), StepInFlight)
    assert world.looks == looks, "one look is enough for one"
    world.set("vm-2", cpu_usage_mhz=5200)
    outcome = executor.begin(SuspendVm("vm-2"))
    assert isinstance(outcome, Outcome)
    assert (outcome.verdict, outcome.reason) == (Verdict.SKIPPED, "uses 5200 MHz, idle is below 500")


@pytest.mark.parametrize("passed_s", [LOOK_S, LOOK_S + 1])
def test_a_look_that_grew_old_is_made_again(world: World, journal: Journal, passed_s: float) -> None:
    passed = [0.0]
    run = journal.begin("test")
    executor = VmExecutor(SmallVcenter(world), journal, run, world.snapshot(), guard=NIGHT, passed_s=lambda: passed[0])
    executor.look_before([SuspendVm("vm-1")])
    world.set("vm-1", cpu_usage_mhz=5200)
    passed[0] += passed_s
    outcome = executor.begin(SuspendVm("vm-1"))
    assert isinstance(outcome, Outcome) is (passed_s > LOOK_S), "what began a moment ago is not seen by anybody"


def test_a_look_at_one_vm_says_nothing_of_another(world: World, journal: Journal) -> None:
    """A return that stops ML VMs one after the other has no guard: each goes by the look at itself."""
    passed = [0.0]
    executor = VmExecutor(
        SmallVcenter(world), journal, journal.begin("test"), world.snapshot(), passed_s=lambda: passed[0]
    )
    executor.look_before([ShutDownGuest("vm-1"), ShutDownGuest("vm-2")])
    passed[0] += LOOK_S
    executor.look_before([ShutDownGuest("vm-1")])
    looks = world.looks
    passed[0] += 1
    assert isinstance(executor.begin(ShutDownGuest("vm-1")), StepInFlight)
    assert world.looks == looks
    assert isinstance(executor.begin(ShutDownGuest("vm-2")), StepInFlight)
    assert world.looks == looks + 1


def test_what_a_desktop_did_in_the_last_quarter_of_an_hour_is_read_before_it_is_taken(
    world: World, journal: Journal
) -> None:
    """Each time anew, whatever an earlier look had told."""
    pool = replace(DESKTOPS, idle=IdleRule(500, for_s=900))
    guard = Guard(Policy("small", (pool,), ml=QUEUE), StepCounts(40), CATALOG)
    executor = VmExecutor(SmallVcenter(world), journal, journal.begin("test"), world.snapshot(), guard=guard)
    ago = partial(lambda now, s: now - timedelta(seconds=s), world.now)
    world.counters["vm-1"] = {CPU_MHZ: CounterWindow(4000, ago(900), ago(0), world.now)}
    executor.look_before([SuspendVm("vm-1")])
    begun = executor.begin(SuspendVm("vm-1"))
    reason = "used 4000 MHz within the last 15 min, idle is below 500"
    assert begun == Outcome(SuspendVm("vm-1"), Verdict.SKIPPED, reason)
    world.counters["vm-1"] = {CPU_MHZ: CounterWindow(40, ago(900), ago(0), world.now)}
    executor.forget_earlier_looks()
    executor.look_before([SuspendVm("vm-1"), SuspendVm("vm-2")])
    assert isinstance(executor.begin(SuspendVm("vm-1")), StepInFlight)
    unknown = executor.begin(SuspendVm("vm-2"))
    assert isinstance(unknown, Outcome)
    assert unknown.reason == "vCenter has no samples of its cpu.usagemhz.average"
    assert [step.vm for step in world.requests] == ["vm-1"]


def test_sessions_are_asked_for_anew_before_a_desktop_is_taken(world: World, journal: Journal) -> None:
    """A desktop whose sessions must be known and are not is kept, as is one in which somebody works."""
    used: dict[str, bool | None] = {"vm-1": True}
    refs_asked: list[list[str]] = []

    class Told:
        def sessions(self, vms: Sequence[Vm], inventory: Inventory) -> Mapping[str, SessionCount]:
            refs_asked.append([vm.ref for vm in vms])
            because: dict[bool | None, str] = {None: "a time-out"}
            is_used = {vm.ref: used.get(vm.ref) for vm in vms}
            at = inventory.taken_at
            return {ref: SessionCount(None, is_used[ref], at, because=because.get(is_used[ref], "")) for ref in is_used}

    pool = replace(DESKTOPS, idle=IdleRule(500, required=frozenset({Source.COMMAND})))
    guard = Guard(Policy("small", (pool,), ml=QUEUE), StepCounts(40), CATALOG)
    executor = VmExecutor(
        SmallVcenter(world),
        journal,
        journal.begin("test"),
        world.snapshot(),
        guard=guard,
        sources={Source.COMMAND: Told()},
    )
    steps = [SuspendVm("vm-1"), SuspendVm("vm-2")]
    executor.look_before(steps)
    expected = [Outcome(steps[0], Verdict.SKIPPED, "it is used, as the command reports")]
    expected.append(Outcome(steps[1], Verdict.SKIPPED, "its sessions are not known: a time-out"))
    assert [executor.begin(step) for step in steps] == expected
    used["vm-1"] = False
    executor.forget_earlier_looks()
    executor.look_before(steps)
    assert isinstance(executor.begin(steps[0]), StepInFlight)
    assert refs_asked == [["vm-1", "vm-2"]] * 2
    assert [step.vm for step in world.requests] == ["vm-1"]


def test_a_desktop_whose_user_came_while_the_journal_was_written_is_left_alone(
    world: World, journal: Journal, mocker: MockerFixture
) -> None:
    """A disk may take its time, and a PostgreSQL server more of it."""
    passed = [0.0]
    executor = VmExecutor(
        SmallVcenter(world), journal, journal.begin("test"), world.snapshot(), guard=NIGHT, passed_s=lambda: passed[0]
    )
    written = journal.intend

    def slowly(run: Run, step: Step, inventory: Inventory) -> str:
        passed[0] += LOOK_S + 1
        world.set("vm-1", cpu_usage_mhz=5200)
        return written(run, step, inventory)

    mocker.patch.object(journal, "intend", slowly)
    executor.look_before([SuspendVm("vm-1")])
    outcome = executor.begin(SuspendVm("vm-1"))
    assert isinstance(outcome, Outcome)
    assert (outcome.verdict, outcome.reason) == (Verdict.FAILED, "uses 5200 MHz, idle is below 500")
    assert world.requests == []
    assert journal.open_intents(executor.run) == ()


def test_a_desktop_that_cannot_be_looked_at_in_time_is_left_alone(
    world: World, journal: Journal, mocker: MockerFixture
) -> None:
    passed = [0.0]
    vcenter = SmallVcenter(world)
    executor = VmExecutor(
        vcenter, journal, journal.begin("test"), world.snapshot(), guard=NIGHT, passed_s=lambda: passed[0]
    )
    observe = vcenter.observe

    def slowly(inventory: Inventory, vms: Collection[str]) -> Inventory:
        passed[0] += LOOK_S + 1
        return observe(inventory, vms)

    mocker.patch.object(vcenter, "observe", slowly)
    executor.look_before([SuspendVm("vm-1")])
    outcome = executor.begin(SuspendVm("vm-1"))
    assert isinstance(outcome, Outcome)
    assert outcome.reason == "the last look at the VM was more than 25 s old before the step could be sent, 2 times"
    assert world.requests == []


def test_a_tag_that_withdraws_a_desktop_after_the_plan_is_seen(world: World, do: Do) -> None:
    policy = Policy("small", (DESKTOPS,), opt_out=Mark(tag="gpuops:opt-out"))
    guard = Guard(policy, StepCounts(4), CATALOG)
    world.tags["vm-2"] = ("gpuops:opt-out",)
    outcomes = do((SuspendVm("vm-1"), SuspendVm("vm-2")), guard=guard)
    assert {outcome.step.vm: outcome.reason for outcome in outcomes} == {
        "vm-1": "",
        "vm-2": "opted out (tag gpuops:opt-out)",
    }
