"""Another login of gpuops finishes a night that was killed: what the first one started is still of that night."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from gpuops.api import Site
from gpuops.clock import wall_clock
from gpuops.config.policy import load_policy
from gpuops.execute.journal import Journal
from gpuops.model.vcenter.target import Secret
from gpuops.sim.server import SimServer
from gpuops.vsphere.connection import Connection
from tests.wire.conftest import target_of
from tests.wire.nights.test_later_starts import stopped_names
from tests.wire.nights.test_rotation import DESKTOPS, LAB_POLICY, ML, Made, Wire
from tests.wire.nights.test_suspended_state import back

OTHER: str = "gpuops-2@vsphere.local"


@dataclass
class OtherLogin(Wire):
    """The same vCenter and state directory, as another user."""

    def _with(self, corridor: Callable[[Site], Made]) -> Made:
        user = replace(target_of(self.server), username=OTHER, password=Secret("else"))
        with Connection(user) as connection:
            return corridor(Site(connection, self.state_dir, wall_clock))


@pytest.fixture
def wire(lab: SimServer, tmp_path: Path) -> Iterator[Wire]:
    lab.world.sessions.passwords[OTHER] = "else"
    yield Wire(lab, tmp_path / "state", load_policy(LAB_POLICY), ("rotate", "--policy", str(LAB_POLICY)))


def killed_as_it_starts_a_vm(wire: Wire, monkeypatch: pytest.MonkeyPatch) -> None:
    """The night dies after vCenter took the request to start an ML VM, and before the journal knows of its task."""
    submitted = Journal.record_task

    def dies(journal: Journal, op_id: str, task: str) -> None:
        if wire.server.world.get(task).name == "PowerOnVM_Task":
            raise KeyboardInterrupt
        submitted(journal, op_id, task)

    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr(Journal, "record_task", dies)
        wire.night()


@pytest.mark.quick_cases(1)
@pytest.mark.parametrize("minutes", [0, 30])
def test_what_the_first_login_started_is_stopped_by_the_return_of_the_other(
    wire: Wire, monkeypatch: pytest.MonkeyPatch, minutes: int
) -> None:
    killed_as_it_starts_a_vm(wire, monkeypatch)
    with wire.server.world.lock:
        wire.server.world.clock.advance(60 * minutes)
    other_login = OtherLogin(wire.server, wire.state_dir, wire.policy)
    assert not [note for note in other_login.resume(apply=False).plan.because if "somebody else" in note]
    assert other_login.resume().exit_code == 0
    assert other_login.day().exit_code == 0
    assert stopped_names(wire) == ML
    assert back(wire) == DESKTOPS
