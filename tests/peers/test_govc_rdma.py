"""govc sees distributed switches, RDMA and SR-IOV network cards of our simulated vCenter, and changes them."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from gpuops.sim.server import SimServer, start
from tests.peers.conftest import _endpoint
from tests.peers.processes import Endpoint, Govc, Refusal

pytestmark = pytest.mark.peer


@pytest.fixture
def training() -> Iterator[SimServer]:
    with start("training") as server:
        yield server
    assert server.world.bugs == []


@pytest.fixture
def ask(training: SimServer, govc: Callable[[Endpoint], Govc]) -> Govc:
    return govc(_endpoint(training))


def node(ask: Govc, name: str) -> None:
    """A VM of the template with a second network card, for paravirtual RDMA, and all memory reserved."""
    ask("vm.clone", "-vm=trainer", "-on=false", "-host=esx-01.trn", name)
    ask("vm.network.add", f"-vm={name}", "-net=rdma-vm", "-net.adapter=vmxnet3vrdma")
    ask("vm.change", f"-vm={name}", "-memory-pin=true")


def test_dvs_portgroup_info_shows_ports_and_what_is_on_them(ask: Govc) -> None:
    ports = ask.json("dvs.portgroup.info", "-connected=true", "-active=true", "-pg=rdma-vmk", "dvs-rdma")["port"]
    nic_keys = [port["connectee"]["nicKey"] for port in ports if port.get("connectee")]
    assert nic_keys == ["vmk1"] * 4


def test_a_switch_that_govc_makes_takes_a_host(ask: Govc) -> None:
    ask("dvs.create", "-mtu=9000", "dvs-third")
    ask("dvs.portgroup.add", "-dvs=dvs-third", "-type=earlyBinding", "-nports=4", "third-vm")
    ask("dvs.add", "-dvs=dvs-third", "-pnic=vmnic1", "esx-01.trn")
    assert "/trn-dc/network/third-vm" in ask.lines("find", "/", "-type", "DistributedVirtualPortgroup")
    with pytest.raises(Refusal, match="vmnic3 is an uplink of dvs-sriov"):
        ask("dvs.add", "-dvs=dvs-third", "-pnic=vmnic3", "esx-02.trn")


def test_device_info_shows_the_card_for_rdma_and_a_host_without_the_tag_refuses_it(ask: Govc) -> None:
    node(ask, "node-1")
    devices = ask.json("device.info", "-vm=node-1", "ethernet-*")["devices"]
    assert [device["type"] for device in devices] == ["VirtualVmxnet3", "VirtualVmxnet3Vrdma"]
    assert devices[1]["deviceInfo"]["summary"].startswith("DVSwitch: ")
    ask("vm.power", "-on", "node-1")
    ask("vm.migrate", "-host=esx-02.trn", "node-1")
    with pytest.raises(Refusal, match=r"Net\.PVRDMAVmknic names no VMkernel adapter of host esx-04\.trn"):
        ask("vm.migrate", "-host=esx-04.trn", "node-1")
    ask("host.option.set", "-host=esx-04.trn", "Net.PVRDMAVmknic", "vmk1")
    ask("vm.migrate", "-host=esx-04.trn", "node-1")


def test_sriov_cards_are_added_and_take_a_function(ask: Govc, training: SimServer) -> None:
    ask("vm.clone", "-vm=trainer", "-on=false", "-host=esx-01.trn", "node-1")
    ask("vm.network.add", "-vm=node-1", "-net=sriov-vm", "-net.adapter=sriov")
    ask("vm.change", "-vm=node-1", "-memory-pin=true")
    ask("vm.power", "-on", "node-1")
    devices = ask.json("device.info", "-vm=node-1", "ethernet-*")["devices"]
    assert [device["type"] for device in devices] == ["VirtualVmxnet3", "VirtualSriovEthernetCard"]
    function = devices[1]["sriovBacking"]["virtualFunctionBacking"]["id"]
    assert function.startswith("0000:9b:")
    with pytest.raises(Refusal):
        ask("vm.power", "-suspend", "node-1")
