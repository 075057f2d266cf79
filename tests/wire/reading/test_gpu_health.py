"""A GPU that is lost or requires a reset takes no new vGPU, although vCenter goes on listing it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any, Final, cast

import pytest

from gpuops.api import Site, capacity, place, rotate_night, run
from gpuops.clock import wall_clock
from gpuops.config.policy import parse_policy
from gpuops.config.requests_file import request_of
from gpuops.errors import Refused
from gpuops.execute.site.host_shell import ASK_AGAIN_S, HostsHealth
from gpuops.hostshell.nvidia_smi import NvidiaSmi
from gpuops.hostshell.ssh import CommandResult, Ssh
from gpuops.model.fleet_change import LoseHost
from gpuops.model.vcenter.vm import PowerState
from gpuops.plan.capacity.capacity_request import CapacityRequest
from gpuops.plan.core.plan import Verdict
from gpuops.plan.core.steps import SuspendVm
from gpuops.plan.queue.place import Place
from gpuops.plan.vm.attach import Attach
from gpuops.plan.vm.vm_blockers import PowerPolicy
from gpuops.sim.fault_injection.rule import Effect, Rule
from gpuops.sim.outside_events.host_events import lose_gpu
from gpuops.sim.scenario.build import build
from gpuops.sim.scenario.deviations import deviate
from gpuops.sim.server import SimServer
from gpuops.sim.state.host_state import GpuFault, HostGpu
from gpuops.vsphere.connection import Connection
from tests.sim.guests import nvidia_smi
from tests.wire.conftest import target_of
from tests.wire.nights.test_rotation import LAB_POLICY

ONE, TWO = "esx-01.lab", "esx-02.lab"
FIRST, SECOND = "0000:3b:00.0", "0000:af:00.0"
SLICE = "grid_a100-1-5c"


@dataclass
class SimulatedSsh:
    """The shells of simulated hosts, without SSH."""

    server: SimServer
    silent: set[str] = field(default_factory=set)

    def run(self, host: str, command: str, *, limit_s: float = 0, heard: bool = True) -> CommandResult:
        if host in self.silent:
            raise Refused(f"{host}: cannot be reached by SSH")
        text, status = nvidia_smi.answer(host_of(self.server, host), command)
        return CommandResult(text, "", status)


def host_of(server: SimServer, name: str) -> Any:
    [host] = [host for host in server.world.by_type("HostSystem") if host.display_name == name]
    return host


@dataclass
class Lab:
    """The lab, whose hosts report the health of their GPUs."""

    server: SimServer
    site: Site
    ssh: SimulatedSsh
    said: list[str]

    def gpu(self, address: str, host: str = ONE) -> HostGpu:
        [gpu] = [gpu for gpu in host_of(self.server, host).state.gpus if gpu.pci_id == address]
        return cast(HostGpu, gpu)

    def slots(self) -> tuple[int, int | None]:
        inventory = self.site.with_vgpus(self.site.vcenter.inventory())
        now = capacity(CapacityRequest(profile="a100-1-5c", host=ONE), inventory, self.site).now
        return now.fits[SLICE].slots.at_least, now.fits[SLICE].slots.at_most


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[Lab]:
    with (
        SimServer(build("lab")) as server,
        Connection(target_of(server)) as connection,
        Site(connection, tmp_path / "state", wall_clock) as site,
    ):
        messages: list[str] = []
        ssh = SimulatedSsh(server)
        shell = NvidiaSmi(cast(Ssh, ssh))
        site.shell, site.say = shell, messages.append
        site.gpu_health = HostsHealth(shell, messages.append, partial(next, count(0.0, ASK_AGAIN_S)))
        yield Lab(server, site, ssh, messages)


@pytest.mark.parametrize("fault", [GpuFault.LOST, GpuFault.REQUIRES_RESET, GpuFault.RECOVERY_RESET])
def test_capacity_does_not_count_on_it(lab: Lab, fault: GpuFault) -> None:
    assert lab.slots() == (14, 14)
    lab.gpu(FIRST).faults = frozenset({fault})
    assert lab.slots() == (7, 7)
    assert lab.said == []


@pytest.mark.parametrize("fault", [GpuFault.CORRUPT_INFOROM, GpuFault.ROW_REMAP_PENDING, GpuFault.UNKNOWN_ERROR])
def test_other_faults_take_no_room_away(lab: Lab, fault: GpuFault) -> None:
    lab.gpu(FIRST).faults = frozenset({fault})
    assert lab.slots() == (14, 14)


def test_a_host_that_does_not_answer_takes_nothing_from_the_others(lab: Lab) -> None:
    lab.gpu(FIRST).faults = frozenset({GpuFault.LOST})
    lab.ssh.silent = {TWO}
    assert lab.slots() == (7, 7)
    assert lab.said == [f"the health of GPUs is not known: {TWO}: cannot be reached by SSH"]


def test_attach_chooses_the_other_gpu_or_refuses(lab: Lab) -> None:
    lab.gpu(FIRST).faults = frozenset({GpuFault.LOST})
    start = Attach("ml-02", profile="a100-2-10c", power=PowerPolicy.ON)
    report = run(start, lab.site, apply=True)
    assert report.exit_code == 0
    assert [seat.pci_id for seat in host_of(lab.server, ONE).seats() if seat.type.name == "grid_a100-2-10c"] == [SECOND]
    lab.gpu(SECOND).faults = frozenset({GpuFault.REQUIRES_RESET})
    refused = run(Attach("ml-01", profile="a100-3-20c", power=PowerPolicy.ON), lab.site, apply=True)
    reasons = {
        rejection.rule: rejection.hint for rejection in refused.plan.rejections if "nvidia-smi" in rejection.rule
    }
    assert refused.exit_code == 3
    assert reasons == {
        "is lost (nvidia-smi)": "reboot the host",
        "requires a reset (nvidia-smi)": "reboot the host",
    }


def test_without_the_host_shell_the_host_refuses_what_is_promised(lab: Lab) -> None:
    """That is why it is asked: vCenter lists the GPU as before."""
    for address in (FIRST, SECOND):
        lab.gpu(address).faults = frozenset({GpuFault.LOST})
    lab.site.shell = None
    report = run(Attach("ml-01", profile="a100-3-20c", power=PowerPolicy.ON), lab.site, apply=True)
    assert report.outcomes[-1].verdict is Verdict.FAILED


WISH: Final = request_of({"name": "one", "vcpu": 2, "memory": "8GiB", "profile": "a100-1-5c"})


@pytest.fixture
def lab_with_lost_gpus(lab: Lab) -> Lab:
    """Both GPUs of the profile are lost."""
    for address in (FIRST, SECOND):
        lab.gpu(address).faults = frozenset({GpuFault.LOST})
    return lab


def test_place_does_not_count_on_it(lab_with_lost_gpus: Lab) -> None:
    assert place(Place((WISH,)), lab_with_lost_gpus.site).exit_code == 3


def test_what_if_does_not_count_on_it(lab_with_lost_gpus: Lab) -> None:
    from gpuops.extras.sizing.what_if.comparing import compare_fleets
    from gpuops.extras.sizing.what_if.question import WhatIf

    answer = compare_fleets(
        WhatIf((LoseHost(TWO),), (WISH,)), lab_with_lost_gpus.site.vcenter.inventory(), lab_with_lost_gpus.site
    )
    [gpu] = [gpu for gpu in answer.inventory.find_host(ONE).gpus if str(gpu.address) == FIRST]
    assert gpu.vgpu_obstacle == "is lost (nvidia-smi)"


def test_a_night_does_not_count_on_it(lab: Lab) -> None:
    policy = parse_policy(LAB_POLICY.read_text(encoding="utf-8"), "of the tests")

    def suspended_names() -> set[str]:
        plan, inventory = rotate_night(policy, lab.site, apply=False).plan, lab.site.vcenter.inventory()
        assert all(vm.power is not PowerState.OFF for vm in inventory.vms.values() if vm.name == "vdi-07")
        return {inventory.vms[step.vm].name for step in plan.steps if isinstance(step, SuspendVm)}

    assert "vdi-07" in suspended_names()
    lab.gpu(FIRST, TWO).faults = frozenset({GpuFault.REQUIRES_RESET})
    assert not suspended_names() & {"vdi-07", "vdi-08", "vdi-09", "vdi-10"}, "they could not resume there"
    lab.site.gpu_health = None
    assert "vdi-07" in suspended_names()


def test_a_host_is_asked_once_a_minute_and_warned_of_once(lab: Lab) -> None:
    now_s = 0.0
    health = HostsHealth(NvidiaSmi(cast(Ssh, lab.ssh)), lab.said.append, lambda: now_s)
    inventory = lab.site.vcenter.inventory()

    def obstacle() -> str:
        [gpu] = [gpu for gpu in health(inventory).find_host(ONE).gpus if str(gpu.address) == FIRST]
        return gpu.vgpu_obstacle

    lab.ssh.silent = {TWO}
    assert obstacle() == ""
    lab.gpu(FIRST).faults = frozenset({GpuFault.LOST})
    assert obstacle() == ""
    now_s = ASK_AGAIN_S
    assert obstacle() == "is lost (nvidia-smi)"
    assert lab.said == [f"the health of GPUs is not known: {TWO}: cannot be reached by SSH"]


@pytest.mark.parametrize("deviates", [False, True])
def test_a_corrupt_inforom_promises_no_slot_that_is_taken(lab: Lab, deviates: bool) -> None:
    """nvidia-smi may leave the GPU out of its answers: it is not empty for that, and the others are known."""
    run(Attach("ml-01", profile="a100-3-20c", power=PowerPolicy.ON), lab.site, apply=True)
    [seat] = [seat for seat in host_of(lab.server, ONE).seats() if seat.type.name == "grid_a100-3-20c"]
    exact = lab.slots()
    assert exact == (10, 10)
    if deviates:
        deviate(lab.server.world, ["smi-corrupt-inforom"])
    lab.gpu(seat.pci_id).faults = frozenset({GpuFault.CORRUPT_INFOROM})
    assert lab.slots()[0] <= 10
    assert deviates or lab.slots() == exact
    assert lab.said == []
    states = {str(state.address): state for state in lab.site.shell.mig(ONE)}  # type: ignore[union-attr]
    assert states[seat.pci_id].health.has_corrupt_inforom
    assert (states[seat.pci_id].current, states[SECOND].current) == (None if deviates else True, True)


@pytest.mark.parametrize("deviation", ["smi-lost-gpu", "lost-gpu-listed"])
def test_a_lost_gpu_takes_nothing_new_however_it_is_reported(lab: Lab, deviation: str) -> None:
    """nvidia-smi may leave it out of its answer, and vCenter out of its list: no slot on it is promised."""
    deviate(lab.server.world, [deviation])
    assert lab.slots() == (14, 14)
    with lab.server.world.lock:
        lose_gpu(host_of(lab.server, ONE), Rule(Effect.HAPPEN))
    assert lab.slots() == (7, 7)
