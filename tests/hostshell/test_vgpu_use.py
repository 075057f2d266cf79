"""How much vGPUs are used, as evidence: asked of hosts over real SSH, and read from what `observe` has stored."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from gpuops.api import Site
from gpuops.api.connection import vgpu_use
from gpuops.clock import wall_clock
from gpuops.execute.site.host_shell import ASK_AGAIN_S, HostsVgpuUse, most_used
from gpuops.extras.observe.observing import observe
from gpuops.hostshell.nvidia_smi import VGPUS, NvidiaSmi
from gpuops.model.desktops.evidence import VgpuUse
from gpuops.model.devices.gpu import PciAddress
from gpuops.model.measurements.measurement import MeasurementSettings
from gpuops.model.vcenter.host_settings import SmiVgpu
from gpuops.model.vcenter.inventory import Inventory
from gpuops.model.vcenter.vm import Vm
from gpuops.sim.scenario.build import build
from gpuops.sim.server import SimServer
from gpuops.vsphere.connection import Connection
from tests.hostshell.server import ShellHost, ssh_server
from tests.sim.guests import nvidia_smi
from tests.wire.conftest import target_of

NAME = "esx-01.lab"


@dataclass
class Lab:
    """`lab`, one of whose two hosts can be entered, and a site; time passes as the test says."""

    site: Site
    host: ShellHost
    passed_s: float = 0.0
    said: list[str] = field(default_factory=list)

    def source(self) -> HostsVgpuUse:
        return HostsVgpuUse(NvidiaSmi(self.host.ssh), self.said.append, lambda: self.passed_s)

    def desktops(self, host: str = NAME) -> tuple[Inventory, list[Vm]]:
        """Those that run on the host with a vGPU."""
        inventory = self.site.vcenter.inventory()
        vms = inventory.vms_by_host[inventory.find_host(host).ref]
        return inventory, [vm for vm in vms if vm.profiles and vm.may_run]


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[Lab]:
    world = build("lab")
    with SimServer(world) as server:
        (esx,) = (host for host in world.by_type("HostSystem") if host.display_name == NAME)
        with (
            ssh_server(tmp_path, NAME, lambda command: nvidia_smi.answer(esx, command)) as host,
            Connection(target_of(server)) as connection,
            Site(connection, tmp_path / "state", wall_clock) as site,
        ):
            yield Lab(site, host)


@pytest.mark.long
def test_a_host_is_asked_once_in_a_minute_and_its_answer_grows_old(lab: Lab) -> None:
    inventory, desktops = lab.desktops()
    source = lab.source()
    use_by_vm = source.use(desktops, inventory)
    percents = {use.percent for use in use_by_vm.values()} - {None}
    assert percents and percents <= set(range(12, 30)), "as the simulated nvidia-smi tells it"
    assert lab.host.asked == [VGPUS]
    lab.passed_s = ASK_AGAIN_S - 1
    second_use = source.use(desktops[:1], inventory)
    assert second_use == {desktops[0].ref: replace(use_by_vm[desktops[0].ref], age_s=int(ASK_AGAIN_S - 1))}
    lab.passed_s = ASK_AGAIN_S
    assert source.use(desktops, inventory) == use_by_vm
    assert lab.host.asked == [VGPUS, VGPUS]
    assert lab.said == []


@pytest.mark.long
def test_a_host_that_does_not_answer_is_said_once_and_rests(lab: Lab) -> None:
    inventory, desktops = lab.desktops("esx-02.lab")
    source = lab.source()
    for lab.passed_s in (0.0, 30.0, 2 * ASK_AGAIN_S):
        uses = set(source.use(desktops, inventory).values())
        assert uses == {VgpuUse(None, because="the nvidia-smi of its host does not answer")}
    [message] = lab.said
    assert message.startswith("the use of vGPUs is not known: esx-02.lab: its SSH key is unknown, or not the one in")
    disconnected = inventory.with_hosts([replace(inventory.find_host("esx-02.lab"), connected=False)])
    assert {use.because for use in lab.source().use(desktops, disconnected).values()} == {
        "its host is not connected, or not known"
    }


@pytest.mark.long
def test_a_name_that_two_vms_of_a_host_have_tells_of_neither(lab: Lab) -> None:
    inventory, desktops = lab.desktops()
    first, second = desktops[:2]
    twins = inventory.with_vm(replace(second, name=first.name))
    use_by_vm = lab.source().use([first, twins.vms[second.ref]], twins)
    assert {use.because for use in use_by_vm.values()} == {"the nvidia-smi of its host lists no vGPU certainly its own"}


def test_a_vm_with_a_vgpu_that_is_not_told_of_is_unknown() -> None:
    gpu = PciAddress.parse("0000:3b:00.0")
    measured, unknown = (SmiVgpu(gpu, "ml-1", "nvidia_a40-8q", None, percent) for percent in (7, None))
    assert (most_used([measured, replace(measured, utilization_percent=90)]), most_used([measured, unknown])) == (
        90,
        None,
    )
    assert most_used([]) is None


@pytest.mark.long
def test_where_hosts_are_not_entered_the_newest_that_is_stored_counts(lab: Lab) -> None:
    inventory, desktops = lab.desktops()
    stored = vgpu_use(lab.site, None, lab.said.append)
    assert stored is not None
    assert {use.percent for use in stored.use(desktops, inventory).values()} == {None}, "no store, and none is made"
    lab.site.shell = NvidiaSmi(lab.host.ssh)
    observe(lab.site)
    inventory, desktops = lab.desktops()
    now, then = lab.source().use(desktops, inventory), stored.use(desktops, inventory)
    for vm in desktops:
        live, from_store = now[vm.ref].percent, then[vm.ref].percent
        assert (live is None) == (from_store is None)
        assert live is None or from_store is None or abs(live - from_store) <= 1
        assert from_store is None or then[vm.ref].age_s < 300
    assert lab.said == []


@pytest.mark.long
def test_a_store_that_is_damaged_ends_no_look(lab: Lab, tmp_path: Path) -> None:
    inventory, desktops = lab.desktops()
    folder = tmp_path / "kept"
    folder.mkdir(mode=0o700)
    (folder / "measurements.sqlite").write_bytes(b"no database" * 200)
    (folder / "measurements.sqlite").chmod(0o600)
    lab.site.measured = MeasurementSettings(store_dir=str(folder))
    source = vgpu_use(lab.site, None, lab.said.append)
    assert source is not None
    for _ in range(2):
        assert {use.because for use in source.use(desktops, inventory).values()} == {
            "the store of measurements cannot be read"
        }
    assert len(lab.said) == 1
