"""Trouble in the middle of an attach and of a night: each intent has its effect once, the journal and the exit code
say what happened, and no session stays behind."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from typing import Any, Final

import pytest

from gpuops.api import Site, rotate_day, rotate_night, rotate_resume, run
from gpuops.clock import wall_clock
from gpuops.config.policy import load_policy
from gpuops.errors import GpuopsError
from gpuops.plan.core.plan import Report
from gpuops.plan.vm.attach import Attach
from gpuops.sim.fault_injection.rule import Effect, Phase, Rule
from gpuops.sim.server import SimServer
from gpuops.vsphere import watches
from gpuops.vsphere.connection import Connection
from tests.cli.aside import Aside
from tests.execute.journals import left_open, op_ids
from tests.sample import mostly_long
from tests.wire.conftest import target_of

pytestmark = pytest.mark.long

POLICY = Path(__file__).resolve().parents[3] / "gpuops" / "sim" / "scenarios" / "lab-policy.yaml"
DESKTOPS: Final = {"vdi-07", "vdi-08", "vdi-09", "vdi-10"}
ATTACH: Final = Attach("ml-07", profile="a100d-80c", move="cold", power="on")  # type: ignore[arg-type]
AFTER: Final = Phase.AFTER

BROKEN_OFF: Final = {
    "reset": Rule(Effect.RESET),
    "reset after": Rule(Effect.RESET, phase=AFTER),
    "cut": Rule(Effect.CUT),
    "503": Rule(Effect.HTTP),
    "session ends": Rule(Effect.EXPIRE),
    "session ends after": Rule(Effect.EXPIRE, phase=AFTER),
}


@dataclass
class Wire:
    """One simulated vCenter and one state directory; every call is a login of its own."""

    server: SimServer
    state_dir: Path
    aside: Aside = field(init=False)

    def __post_init__(self) -> None:
        self.aside = Aside(self.server, self.state_dir, "GPUOPS_STATE_DIR")

    def __call__(self, corridor: Callable[[Site], Report]) -> int:
        """The exit code a command would have."""

        def act() -> Report:
            with Connection(target_of(self.server)) as connection:
                return corridor(Site(connection, self.state_dir, wall_clock))

        try:
            report = self.aside.of(("rotate", "--policy", str(POLICY)), act)
        except GpuopsError as error:
            return error.exit_code
        finally:
            assert list(self.server.world.sessions) == []
        return report.exit_code

    def attach(self) -> int:
        return self(lambda site: run(ATTACH, site, apply=True))

    def night(self) -> int:
        return self(lambda site: rotate_night(load_policy(POLICY), site, apply=True))

    def resume(self) -> int:
        return self(rotate_resume)

    def day(self) -> int:
        return self(lambda site: rotate_day(load_policy(POLICY), site, apply=True))

    def strike(self, rule: Rule, method: str, **options: Any) -> None:
        rule_fields = {**rule.to_json(), "method": method, **options}
        self.server.world.injector.add(Rule.from_json(rule_fields))

    def left_open(self) -> list[str]:
        """Kinds of the runs and intents that the journal does not call ended."""
        vcenter = self.server.world.get("ServiceInstance").instance_uuid
        intended = op_ids(self.state_dir, vcenter)
        assert {change.operation_id for change in self.server.world.ledger} <= intended, "no effect without its intent"
        return left_open(self.state_dir, vcenter)

    def effects(self, *methods: str) -> Counter[tuple[str, str]]:
        return Counter((change.method, change.name) for change in self.server.world.ledger if change.method in methods)


@pytest.fixture
def wire(lab: SimServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Wire]:
    monkeypatch.setattr(watches, "PAUSES_S", (0.0,) * len(watches.PAUSES_S))  # test_tasks.py sees to the real ones
    wire = Wire(lab, tmp_path / "state")
    yield wire
    assert wire.aside.wrong == []


CHANGES: Final = ("RelocateVM_Task", "ReconfigVM_Task", "PowerOnVM_Task")
READS: Final = ("RetrievePropertiesEx", "CurrentTime", "WaitForUpdatesEx", "CreateFilter")


@pytest.mark.parametrize(
    ("method", "trouble"),
    mostly_long(
        product(READS, BROKEN_OFF),
        [
            ("RetrievePropertiesEx", "reset after"),
            ("RetrievePropertiesEx", "503"),
            ("CurrentTime", "reset"),
            ("WaitForUpdatesEx", "cut"),
            ("WaitForUpdatesEx", "session ends after"),
            ("CreateFilter", "session ends"),
        ],
    ),
)
def test_a_read_that_breaks_off_once_does_not_stop_an_attach(wire: Wire, method: str, trouble: str) -> None:
    wire.strike(BROKEN_OFF[trouble], method)
    assert wire.attach() == 0
    assert wire.effects(*CHANGES) == dict.fromkeys(((method, "ml-07") for method in CHANGES), 1)
    assert wire.left_open() == []


@pytest.mark.parametrize(
    ("method", "trouble"),
    mostly_long(
        product(CHANGES, ("reset after", "cut", "session ends", "session ends after")),
        [
            *((method, "reset after") for method in CHANGES),
            ("RelocateVM_Task", "cut"),
            ("ReconfigVM_Task", "session ends after"),
            ("PowerOnVM_Task", "session ends"),
        ],
    ),
)
def test_a_change_of_which_nothing_is_heard_happens_once(wire: Wire, method: str, trouble: str) -> None:
    wire.strike(BROKEN_OFF[trouble], method)
    assert wire.attach() == 0
    assert wire.effects(*CHANGES) == dict.fromkeys(((method, "ml-07") for method in CHANGES), 1)
    assert wire.left_open() == []


@pytest.mark.parametrize("trouble", ["reset", "503"])
def test_a_reconfiguration_lost_on_the_way_is_sent_once_more_with_its_change_version(wire: Wire, trouble: str) -> None:
    wire.strike(BROKEN_OFF[trouble], "ReconfigVM_Task")
    assert wire.attach() == 0
    assert wire.effects(*CHANGES) == dict.fromkeys(((method, "ml-07") for method in CHANGES), 1)
    assert wire.left_open() == []


@pytest.mark.parametrize(
    ("method", "fault"),
    mostly_long(
        product(CHANGES, ("TaskInProgress", "ConcurrentAccess")),
        [
            ("RelocateVM_Task", "TaskInProgress"),
            ("ReconfigVM_Task", "ConcurrentAccess"),
            ("PowerOnVM_Task", "TaskInProgress"),
        ],
    ),
)
def test_a_change_that_somebody_else_is_in_the_way_of_is_tried_again(wire: Wire, method: str, fault: str) -> None:
    wire.strike(Rule(Effect.FAULT, fault=fault), method)
    assert wire.attach() == 0
    assert wire.effects(*CHANGES) == dict.fromkeys(((method, "ml-07") for method in CHANGES), 1)
    assert wire.left_open() == []


REFUSED: Final = {
    "task in progress": Rule(Effect.FAULT, fault="TaskInProgress", times=4),
    "changed meanwhile": Rule(Effect.FAULT, fault="ConcurrentAccess", times=4),
    "fails at the end": Rule(Effect.TASK, fault="GenericVmConfigFault"),
}


@pytest.mark.parametrize(
    ("method", "refusal"),
    mostly_long(
        product(CHANGES, REFUSED),
        [
            ("RelocateVM_Task", "fails at the end"),
            ("ReconfigVM_Task", "changed meanwhile"),
            ("PowerOnVM_Task", "task in progress"),
            ("PowerOnVM_Task", "fails at the end"),
        ],
    ),
)
def test_a_refused_change_ends_the_attach_and_a_second_run_finishes_it(wire: Wire, method: str, refusal: str) -> None:
    wire.strike(REFUSED[refusal], method)
    assert wire.attach() == 4
    assert wire.effects(method) == {}
    assert wire.left_open() == []
    assert wire.attach() == 0
    assert wire.effects(*CHANGES) == dict.fromkeys(((method, "ml-07") for method in CHANGES), 1)


IN_THE_NIGHT: Final = [
    (Rule(Effect.FAULT, fault="SystemError"), "WaitForUpdatesEx"),
    (Rule(Effect.EXPIRE, phase=AFTER), "RetrievePropertiesEx"),
    (Rule(Effect.DELAY, delay_s=45.0), "SuspendVM_Task"),
    (Rule(Effect.RESET, phase=AFTER), "AddCustomFieldDef"),
    (Rule(Effect.FAULT, fault="SystemError"), "CreateFilter"),
    (Rule(Effect.HTTP), "RetrievePropertiesEx"),
    (Rule(Effect.CUT), "CurrentTime"),
]


@pytest.mark.parametrize(("rule", "method"), mostly_long(IN_THE_NIGHT, IN_THE_NIGHT[:4]))
def test_a_night_goes_through_what_breaks_off_once(wire: Wire, rule: Rule, method: str) -> None:
    wire.strike(rule, method)
    assert wire.night() == 0
    assert wire.effects("SuspendVM_Task") == {("SuspendVM_Task", name): 1 for name in DESKTOPS}
    assert wire.left_open() == []


@pytest.mark.parametrize("method", mostly_long(["CurrentTime", "RetrievePropertiesEx"], ["RetrievePropertiesEx"]))
def test_a_night_that_loses_vcenter_is_finished_by_resume(wire: Wire, method: str) -> None:
    """It answers the first looks, then breaks off every reply."""
    wire.strike(Rule(Effect.RESET, times=None), method, target="*", skip=6)
    assert wire.night() == 5
    assert "rotate night" in wire.left_open()
    wire.server.world.injector.clear()
    assert wire.resume() == 0
    assert wire.effects("SuspendVM_Task") == {("SuspendVM_Task", name): 1 for name in DESKTOPS}
    assert wire.day() == 0
    assert wire.left_open() == []
    back = Counter(change.name for change in wire.server.world.ledger if change.before.get("power") == "suspended")
    assert back == dict.fromkeys(DESKTOPS, 1)


@pytest.mark.parametrize("rule", [Rule(Effect.RESET), Rule(Effect.HTTP)])
def test_a_logout_that_breaks_off_is_said_again(wire: Wire, rule: Rule) -> None:
    wire.strike(rule, "Logout")
    assert wire.attach() == 0
