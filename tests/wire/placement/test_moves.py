"""A defragmentation carried out over real SOAP: as it was planned, whatever is killed, and no further than it holds."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest
import yaml

from gpuops.config.policy import parse_policy
from gpuops.errors import UsageError
from gpuops.execute.change import rolling_change, vm_moves
from gpuops.execute.rotation.rotation import rotate
from gpuops.execute.runs import RunKind
from gpuops.execute.site import Site, agreed
from gpuops.model.nights.rotation_policy import Policy
from gpuops.plan.core.plan import Report, Verdict
from gpuops.plan.moving.defrag import Defrag, Defragmentation
from gpuops.sim.fault_injection.rule import Effect, Rule
from gpuops.sim.scenario.deviations import deviate
from gpuops.sim.server import SimServer
from gpuops.vsphere.connection import Connection
from tests.cli.aside import Aside
from tests.wire.conftest import target_of
from tests.wire.steps.points import Killed, Points

pytestmark = pytest.mark.long

Serve = Callable[[str], SimServer]


class Bench:
    """`scattered` and one state directory; every call is a login of its own."""

    def __init__(self, server: SimServer, state_dir: Path) -> None:
        self.server, self.state_dir = server, state_dir
        self.aside = Aside(server, state_dir, "GPUOPS_STATE_DIR", server.world.clock.now)

    def execute(self, *, apply: bool = True, **options: Any) -> Report:
        return self._with(
            lambda site: vm_moves.carry_out(Defrag(**{"max_moves": 2, **options}), site, apply=apply, consent=agreed)
        )

    def by_policy(self, text: str, most_moves: int | None = None) -> Report:
        policy = parse_policy(text, "of the tests")
        return self._with(lambda site: vm_moves.carry_out_by_policy(policy, site, apply=True, most_moves=most_moves))

    def moves_by_policy(self, policy: Policy) -> Defragmentation:
        return self._with(lambda site: vm_moves.plan_moves(Defrag(budget=2), site.vcenter.inventory(), site, policy))

    def resume(self) -> Report:
        return self._with(lambda site: rolling_change.resume(site, apply=True, consent=_yes, told=_nobody))

    def abort(self) -> Report:
        return self._with(lambda site: rolling_change.abort(site, apply=True, consent=_yes, told=_nobody))

    def status(self) -> Any:
        return self._with(rolling_change.status)

    def plan_moves(self, max_moves: int | None = 2) -> Any:
        def ask(site: Site) -> Any:
            from gpuops.execute.site import catalog_of

            inventory = site.vcenter.inventory()
            return Defrag(max_moves=max_moves).find_moves(inventory, catalog_of(inventory))

        return self._with(ask)

    def _with(self, act: Callable[[Site], Any]) -> Any:
        def play() -> Any:
            with Connection(target_of(self.server)) as connection:
                return act(Site(connection, self.state_dir, self.server.world.clock.now))

        return self.aside.of(("defrag",), play)

    @property
    def effects(self) -> list[tuple[str, str]]:
        return [(change.method, change.name) for change in self.server.world.ledger]


def _yes(report: Any) -> None:
    """Agree without asking."""


def _nobody(line: str) -> None:
    """Ignore the message."""


@pytest.fixture
def bench(serve: Serve, tmp_path: Path) -> Iterator[Bench]:
    bench = Bench(serve("scattered"), tmp_path / "state")
    yield bench
    assert bench.aside.wrong == []


def test_the_moves_are_made_as_planned_one_after_another(bench: Bench) -> None:
    plan = bench.plan_moves()
    report = bench.execute()
    assert (report.exit_code, {outcome.verdict for outcome in report.outcomes}) == (0, {Verdict.DONE})
    assert bench.effects == [("RelocateVM_Task", move.vm.name) for move in plan.moves]
    assert bench.plan_moves(max_moves=0).before == plan.after
    second_run = bench.execute(max_moves=0)
    assert (second_run.changed, second_run.exit_code, second_run.plan.because) == (
        False,
        0,
        ("no move frees anything",),
    )


def test_a_dry_run_moves_nothing(bench: Bench) -> None:
    report = bench.execute(apply=False)
    assert (len(report.plan.steps), report.plan.disruptive, bench.effects) == (len(bench.plan_moves().moves), True, [])


@pytest.mark.parametrize("powered_off", [pytest.param(False, marks=pytest.mark.long), True])
def test_moves_that_are_killed_go_on(bench: Bench, monkeypatch: pytest.MonkeyPatch, powered_off: bool) -> None:
    bench.server.world.options["vgpu.hotmigrate.enabled"] = not powered_off
    before = bench.plan_moves(max_moves=0).before
    points, kills, report = Points(monkeypatch), 0, None
    while report is None:
        points.kill_at(7 + kills % 4)
        try:
            report = bench.resume() if bench.status().verb else bench.execute(powered_off=powered_off)
        except Killed:
            kills += 1
    assert kills > 1
    assert report.exit_code == 0
    assert bench.plan_moves(max_moves=0).before == before + 2
    moved = [name for method, name in bench.effects if method == "RelocateVM_Task"]
    assert sorted(moved) == sorted(set(moved))
    off = [
        vm.display_name for vm in bench.server.world.by_type("VirtualMachine") if vm.state.power.value == "poweredOff"
    ]
    assert off == ["desk-11"], "a VM that was shut down for a move runs again"


@pytest.fixture
def emptiest_first(serve: Serve, tmp_path: Path) -> Iterator[Bench]:
    """`scattered` with two VMs, each alone on a GPU, and hosts that give a VM that starts their emptiest GPU."""
    declared = yaml.safe_load(files("gpuops.sim.scenarios").joinpath("scattered.yaml").read_text("utf-8"))
    declared["options"]["vgpu.hotmigrate.enabled"] = False
    declared["clusters"][0]["hosts"][0]["policy"] = "performance"
    declared["vms"] = [vm for vm in declared["vms"] if vm["name"].startswith("cad")][:2]
    scenario = tmp_path / "emptiest-first.yaml"
    scenario.write_text(yaml.safe_dump(declared), encoding="utf-8")
    bench = Bench(serve(str(scenario)), tmp_path / "state")
    yield bench
    assert bench.aside.wrong == []


def test_a_vm_that_is_off_for_its_move_is_pinned_where_that_frees_more(emptiest_first: Bench) -> None:
    unpinned = emptiest_first.execute(powered_off=True, pin="never")
    assert (unpinned.plan.because, emptiest_first.effects) == (("no move frees anything",), [])
    before = emptiest_first.plan_moves(max_moves=0).before
    report = emptiest_first.execute(powered_off=True)
    assert (report.exit_code, {outcome.verdict for outcome in report.outcomes}) == (0, {Verdict.DONE})
    methods = [method for method, _ in emptiest_first.effects]
    assert methods == ["ShutdownGuest", "RelocateVM_Task", "ReconfigVM_Task", "PowerOnVM_Task"]
    assert emptiest_first.plan_moves(max_moves=0).before == before + 1


def test_a_pinned_move_that_is_killed_goes_on(emptiest_first: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    before = emptiest_first.plan_moves(max_moves=0).before
    points, kills, report = Points(monkeypatch), 0, None
    while report is None:
        points.kill_at(5 + kills % 3)
        try:
            going_on = emptiest_first.status().verb
            report = emptiest_first.resume() if going_on else emptiest_first.execute(powered_off=True)
        except Killed:
            kills += 1
    assert kills > 1
    assert report.exit_code == 0
    assert emptiest_first.plan_moves(max_moves=0).before == before + 1
    pins = [name for method, name in emptiest_first.effects if method == "ReconfigVM_Task"]
    assert len(pins) == 1


def test_a_move_that_fails_ends_it_and_the_rest_is_not_tried(bench: Bench) -> None:
    count = len(bench.plan_moves().moves)
    bench.server.world.injector.add(Rule(Effect.TASK, "RelocateVM_Task", fault="GenericVmConfigFault"))
    report = bench.execute()
    assert report.exit_code == 4
    assert [outcome.verdict for outcome in report.outcomes] == [Verdict.FAILED, *[Verdict.SKIPPED] * (count - 1)]
    assert "gpuops defrag --dry-run plans anew" in report.outcomes[-1].reason
    assert bench.status().verb == "", "nothing is half done"
    assert bench.execute().exit_code == 0


def test_a_vm_that_was_shut_down_for_a_move_that_fails_runs_again_where_it_is(bench: Bench) -> None:
    bench.server.world.options["vgpu.hotmigrate.enabled"] = False
    bench.server.world.injector.add(Rule(Effect.TASK, "RelocateVM_Task", fault="GenericVmConfigFault"))
    report = bench.execute(powered_off=True)
    assert report.exit_code == 4
    assert "PowerOnVM_Task" in [method for method, _ in bench.effects]
    off = [
        vm.display_name for vm in bench.server.world.by_type("VirtualMachine") if vm.state.power.value == "poweredOff"
    ]
    assert off == ["desk-11"]


def test_a_change_that_is_cut_off_can_be_given_up(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    bench.server.world.options["vgpu.hotmigrate.enabled"] = False
    points = Points(monkeypatch)
    points.kill_at(9)
    with pytest.raises(Killed):
        bench.execute(powered_off=True)
    assert (bench.status().verb, bench.status().noun) == ("defrag", "move")
    points.kill_at(0)
    bench.abort()
    assert bench.status().verb == ""
    off = [
        vm.display_name for vm in bench.server.world.by_type("VirtualMachine") if vm.state.power.value == "poweredOff"
    ]
    assert off == ["desk-11"]


POLICY = """
version: 1
name: spare
mode: spare-capacity
spare: {keep_free: {a40-8q: 1}}
defrag: {budget: 2, windows: ["Mon 17:00-20:00 UTC"]}
"""
"""The scenario begins on Monday at 18:00 UTC."""


def test_a_policy_moves_vms_within_its_budget_and_window(bench: Bench) -> None:
    first_report = bench.by_policy(POLICY, most_moves=1)
    assert [outcome.verdict for outcome in first_report.outcomes] == [Verdict.DONE]
    assert len(bench.by_policy(POLICY).outcomes) == 1
    assert bench.by_policy(POLICY).plan.because == (
        "2 moves were made in this window, and policy spare allows no more",
    )
    bench.server.world.clock.advance(3 * 3600)
    assert bench.by_policy(POLICY).plan.because == ("no window of `defrag` of policy spare is open",)
    assert len(bench.effects) == 2
    with pytest.raises(UsageError, match="policy spare has no `defrag`"):
        bench.by_policy("".join(line for line in POLICY.splitlines(keepends=True) if "defrag" not in line))


def test_no_move_starts_after_the_window_has_closed(bench: Bench) -> None:
    world = bench.server.world
    policy = parse_policy(POLICY, "of the tests")

    def run(site: Site) -> Report:
        site.progress = lambda outcome: world.clock.advance(3 * 3600)
        return vm_moves.carry_out_by_policy(policy, site, apply=True)

    report = bench._with(run)
    assert [outcome.verdict for outcome in report.outcomes] == [Verdict.DONE, Verdict.SKIPPED]
    assert "the window for moves has closed" in report.outcomes[1].reason
    assert bench.status().verb == ""


@pytest.mark.parametrize(
    ("settings", "opt_out", "reason"),
    [
        ({"vmx.vmotion.maxStunTime": "20"}, "none.has.it", "stun settings of its own (vmx.vmotion.maxStunTime = 20)"),
        ({}, "gpuops.role", "opted out (attribute gpuops.role)"),
    ],
)
def test_a_policy_moves_no_vm_that_only_an_admin_may_move(
    bench: Bench, settings: dict[str, str], opt_out: str, reason: str
) -> None:
    for vm in bench.server.world.by_type("VirtualMachine"):
        vm.state.extra_config += tuple(settings.items())
    plan = bench.moves_by_policy(parse_policy(f"{POLICY}opt_out: {{attribute: {opt_out}}}\n", "of the tests"))
    assert plan.moves == ()
    assert [text for staying in plan.stays for text in staying.reasons if reason in text]


def test_moves_of_a_policy_that_are_killed_hold_up_no_night(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """At each moment of one run: the next run ends it, and no VM is moved twice or lost."""
    night = parse_policy(
        """
version: 1
name: night
windows: any
pools: [{name: desks, parked: true, owner: none, floor: 99, select: {folder: desks}, idle: {cpu_below_mhz: 500}}]
""",
        "of the tests",
    )
    points, kills = Points(monkeypatch), 0
    for moment in range(1, 40):
        points.kill_at(moment)
        try:
            bench.by_policy(POLICY.replace("budget: 2", "budget: 6"))
        except Killed:
            kills += 1
        else:
            break
        finally:
            points.kill_at(0)
        report = bench._with(lambda site: rotate(RunKind.NIGHT, night, site, apply=True, consent=agreed))
        assert report.plan.feasible
        assert bench.status().verb == "", f"killed at {moment}"
        assert all(
            vm.state.power.value == "poweredOn"
            for vm in bench.server.world.by_type("VirtualMachine")
            if vm.name.startswith("cad")
        )
    assert kills
    moved_vms = [name for method, name in bench.effects if method == "RelocateVM_Task"]
    assert len(moved_vms) > 2, "runs that were killed moved some, the last run the rest"


def test_whoever_thinks_over_whether_vms_may_move_keeps_no_return_away(bench: Bench) -> None:
    """The moves themselves hold the lock, as a change of hosts does."""
    reports_shown: list[Report] = []

    def ask(site: Site) -> Report:
        def consent(report: Report) -> None:
            with site.locked_journal(site.vcenter.uuid, alone=True, returning=True, doing="rotate day"):
                reports_shown.append(report)
            assert bench.effects == []

        return vm_moves.carry_out(Defrag(max_moves=1), site, apply=True, consent=consent)

    report: Report = bench._with(ask)
    assert (report.exit_code, len(reports_shown), len(bench.effects)) == (0, 1, 1)


def test_a_longer_stun_than_estimated_stops_the_moves_and_loses_nothing(bench: Bench) -> None:
    """vCenter counts ten times its own estimates: it refuses the first move, which is named; all VMs run where they
    ran."""
    world = bench.server.world
    places = {vm.name: (vm.host().name, vm.state.power) for vm in world.by_type("VirtualMachine")}
    deviate(world, ["vmotion-stun"])
    report = bench.execute()
    assert report.exit_code == 4
    assert "stun" in report.outcomes[0].reason
    assert bench.effects == []
    assert {vm.name: (vm.host().name, vm.state.power) for vm in world.by_type("VirtualMachine")} == places
