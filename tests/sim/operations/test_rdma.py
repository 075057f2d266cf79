"""Paravirtual RDMA and SR-IOV of the scenario `training`, as a client sees them: what is refused, and what is held."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyVmomi import vim, vmodl

from tests.sim.lab import Lab, serve_lab
from tests.sim.scenario.test_saved_state import run

pytestmark = pytest.mark.long

D = vim.vm.device
Rdma, Sriov = D.VirtualVmxnet3Vrdma, D.VirtualSriovEthernetCard
PORT, OTHER_PORT = "0000:9b:00.0", "0000:4b:00.0"


@pytest.fixture
def lab() -> Iterator[Lab]:
    with serve_lab("training") as lab:
        yield lab


def port_of(lab: Lab, name: str) -> Any:
    """A backing on the distributed port group of that name."""
    [group] = [child for child in lab.datacenter().networkFolder.childEntity if child.name == name]
    connection = vim.dvs.PortConnection(switchUuid=group.config.distributedVirtualSwitch.uuid, portgroupKey=group.key)
    return D.VirtualEthernetCard.DistributedVirtualPortBackingInfo(port=connection)


def rdma_card(lab: Lab, group: str = "rdma-vm", **fields: Any) -> Any:
    return Rdma(key=-1, backing=port_of(lab, group), **fields)


def sriov_card(lab: Lab, port: str = PORT) -> Any:
    function = D.VirtualPCIPassthrough.DeviceBackingInfo(
        id=port, deviceId="0", systemId="BYPASS", vendorId=0, deviceName=""
    )
    backing = Sriov.SriovBackingInfo(physicalFunctionBacking=function)
    return Sriov(key=-1, backing=port_of(lab, "sriov-vm"), sriovBacking=backing)


def clone(
    lab: Lab, name: str, *cards: Any, host: str = "esx-01.trn", reserved: bool = True, of: str = "trainer"
) -> Any:
    """A VM of the template with these cards."""
    added = [D.VirtualDeviceSpec(operation="add", device=card) for card in cards]
    config = vim.vm.ConfigSpec(deviceChange=added, memoryReservationLockedToMax=reserved)
    place = vim.vm.RelocateSpec(host=lab.host(host), pool=lab.cluster().resourcePool)
    spec = vim.vm.CloneSpec(location=place, config=config, template=False, powerOn=False)
    return lab.run(lab.vm(of).CloneVM_Task(lab.datacenter().vmFolder, name, spec))


def cards(vm: Any, kind: Any) -> list[Any]:
    return [device for device in vm.config.hardware.device if isinstance(device, kind)]


def tag(lab: Lab, host: str, adapter: str) -> None:
    options = lab.host(host).configManager.advancedOption
    options.UpdateOptions([vim.option.OptionValue(key="Net.PVRDMAVmknic", value=adapter)])


def move(lab: Lab, name: str, host: str) -> None:
    lab.run(lab.vm(name).MigrateVM_Task(host=lab.host(host), priority="defaultPriority"))


def member(lab: Lab, host: str, *nics: str) -> None:
    """Give the host's part of dvs-rdma these uplinks."""
    [switch] = [child for child in lab.datacenter().networkFolder.childEntity if child.name == "dvs-rdma"]
    kind = vim.dvs.HostMember
    backing = kind.PnicBacking(pnicSpec=[kind.PnicSpec(pnicDevice=nic) for nic in nics])
    changed = kind.ConfigSpec(operation="edit", host=lab.host(host), backing=backing)
    spec = vim.dvs.VmwareDistributedVirtualSwitch.ConfigSpec(configVersion=switch.config.configVersion, host=[changed])
    lab.run(switch.ReconfigureDvs_Task(spec))


# --- paravirtual RDMA -------------------------------------------------------------------------------------------


@pytest.mark.long
def test_a_vm_with_paravirtual_rdma_runs_and_moves_between_hosts_that_are_ready(lab: Lab) -> None:
    vm = clone(lab, "node-1", rdma_card(lab, deviceProtocol="rocev1"))
    [card] = cards(vm, Rdma)
    assert (card.deviceProtocol, card.key, card.backing.port.portgroupKey) == (
        "rocev1", 4001, port_of(lab, "rdma-vm").port.portgroupKey
    )  # fmt: skip
    lab.power_on("node-1")
    move(lab, "node-1", "esx-02.trn")
    assert vm.runtime.host.name == "esx-02.trn"
    with pytest.raises(vim.fault.MigrationFault, match=r"Net\.PVRDMAVmknic names no VMkernel adapter of host esx-04"):
        move(lab, "node-1", "esx-04.trn")
    assert vm.runtime.host.name == "esx-02.trn"


@pytest.mark.long
def test_a_host_without_the_tag_refuses_the_power_on_until_it_has_one(lab: Lab) -> None:
    clone(lab, "node-1", rdma_card(lab), host="esx-04.trn")
    for adapter, words in (("", "names no VMkernel adapter"), ("vmk7", "names vmk7, which the host does not have")):
        tag(lab, "esx-04.trn", adapter)
        with pytest.raises(vim.fault.GenericVmConfigFault, match=words):
            lab.power_on("node-1", "esx-04.trn")
    tag(lab, "esx-04.trn", "vmk1")
    assert {option.key: option.value for option in lab.host("esx-04.trn").config.option}["Net.PVRDMAVmknic"] == "vmk1"
    lab.power_on("node-1", "esx-04.trn")


@pytest.mark.long
@pytest.mark.parametrize(
    ("nics", "words"),
    [
        (("vmnic2", "vmnic1"), "has 2 uplinks on host esx-01.trn"),
        ((), "has 0 uplinks on host esx-01.trn"),
        (("vmnic1",), "The uplink vmnic1 of dvs-rdma on host esx-01.trn has no RDMA device"),
    ],
)
def test_the_switch_needs_one_uplink_with_an_rdma_device(lab: Lab, nics: tuple[str, ...], words: str) -> None:
    clone(lab, "node-1", rdma_card(lab))
    member(lab, "esx-01.trn", *nics)
    with pytest.raises(vim.fault.GenericVmConfigFault, match=words):
        lab.power_on("node-1", "esx-01.trn")
    member(lab, "esx-01.trn", "vmnic2")
    lab.power_on("node-1", "esx-01.trn")


def test_all_memory_is_reserved(lab: Lab) -> None:
    clone(lab, "node-1", rdma_card(lab), reserved=False)
    with pytest.raises(vim.fault.GenericVmConfigFault, match="all memory of its virtual machine reserved"):
        lab.power_on("node-1")


@pytest.mark.long
def test_what_no_vm_can_have_is_refused_when_it_is_added(lab: Lab) -> None:
    with pytest.raises(vim.fault.DeviceUnsupportedForVmVersion) as old:
        clone(lab, "node-1", rdma_card(lab), of="old-trainer")
    assert (old.value.currentVersion, old.value.expectedVersion) == ("vmx-11", "vmx-13")
    standard = D.VirtualEthernetCard.NetworkBackingInfo(deviceName="VM Network")
    with pytest.raises(vim.fault.InvalidDeviceBacking, match="a port of a distributed switch"):
        clone(lab, "node-1", Rdma(key=-1, backing=standard))
    with pytest.raises(vim.fault.InvalidDeviceSpec, match="iwarp"):
        clone(lab, "node-1", rdma_card(lab, deviceProtocol="iwarp"))
    assert "node-1" not in [vm.name for vm in lab.datacenter().vmFolder.childEntity]
    vm = clone(lab, "node-1", rdma_card(lab))
    [card] = cards(vm, Rdma)
    moved = D.VirtualDeviceSpec(operation="edit", device=Rdma(key=card.key, backing=standard))
    with pytest.raises(vim.fault.InvalidDeviceBacking, match="a port of a distributed switch"):
        lab.run(vm.ReconfigVM_Task(vim.vm.ConfigSpec(deviceChange=[moved])))


@pytest.mark.long
def test_it_is_not_added_while_the_vm_runs(lab: Lab) -> None:
    vm = clone(lab, "node-1")
    lab.power_on("node-1")
    added = D.VirtualDeviceSpec(operation="add", device=rdma_card(lab))
    with pytest.raises(vim.fault.InvalidPowerState):
        lab.run(vm.ReconfigVM_Task(vim.vm.ConfigSpec(deviceChange=[added])))


# --- SR-IOV -----------------------------------------------------------------------------------------------------


def virtual_function_of(vm: Any) -> str | None:
    """The virtual function that its card has."""
    [card] = cards(vm, Sriov)
    function = card.sriovBacking.virtualFunctionBacking
    return function and str(function.id)


@pytest.mark.long
def test_a_card_takes_a_function_at_the_power_on_and_gives_it_back(lab: Lab) -> None:
    vms = [clone(lab, f"node-{number}", sriov_card(lab)) for number in range(1, 10)]
    assert virtual_function_of(vms[0]) is None
    for vm in vms[:8]:
        lab.power_on(vm.name, "esx-01.trn")
    listed = {
        pci_device.id
        for pci_device in lab.host("esx-01.trn").hardware.pciDevice
        if "Virtual Function" in pci_device.deviceName
    }
    assert {virtual_function_of(vm) for vm in vms[:8]} == listed
    assert len(listed) == 8
    with pytest.raises(vim.fault.GenericVmConfigFault, match=f"No virtual function of device {PORT} .* is free"):
        lab.power_on("node-9", "esx-01.trn")
    freed = virtual_function_of(vms[3])
    lab.power_off("node-4")
    assert virtual_function_of(vms[3]) is None
    lab.power_on("node-9", "esx-01.trn")
    assert virtual_function_of(vms[8]) == freed


@pytest.mark.long
def test_it_can_be_neither_suspended_nor_moved_nor_snapshotted_while_it_runs(lab: Lab) -> None:
    vm = clone(lab, "node-1", sriov_card(lab))
    lab.power_on("node-1")
    with pytest.raises(vmodl.fault.NotSupported):
        lab.run(vm.SuspendVM_Task())
    with pytest.raises(vim.fault.MigrationFault):
        move(lab, "node-1", "esx-02.trn")
    with pytest.raises(vmodl.fault.NotSupported):
        lab.run(vm.CreateSnapshot_Task("before", "", memory=True, quiesce=False))


@pytest.mark.long
def test_its_memory_is_reserved_and_its_port_divided(lab: Lab) -> None:
    clone(lab, "node-1", sriov_card(lab), reserved=False)
    with pytest.raises(vim.fault.VimFault, match="memory reservation"):
        lab.power_on("node-1")
    clone(lab, "node-2", sriov_card(lab, OTHER_PORT))
    with pytest.raises(vim.fault.GenericVmConfigFault, match=f"{OTHER_PORT} of host .* has no virtual functions"):
        lab.power_on("node-2", "esx-01.trn")
    with pytest.raises(vim.fault.InvalidDeviceBacking, match="No host of the cluster has a network card at 0000:99"):
        clone(lab, "node-3", sriov_card(lab, "0000:99:00.0"))


@pytest.mark.long
def test_vcenter_can_choose_the_port_among_the_uplinks_of_its_network(lab: Lab) -> None:
    vm = clone(lab, "node-1", sriov_card(lab, "Automatic-0000:00:00.0"))
    lab.power_on("node-1", "esx-02.trn")
    assert (virtual_function_of(vm) or "").startswith("0000:9b:")


@pytest.mark.long
def test_a_card_is_edited_and_removed(lab: Lab) -> None:
    vm = clone(lab, "node-1", sriov_card(lab), rdma_card(lab))
    [card] = cards(vm, Sriov)
    assert sorted(ethernet_card.key for ethernet_card in cards(vm, D.VirtualEthernetCard)) == [4000, 4001, 13031]
    assert vm.summary.config.numEthernetCards == 3
    assert {network.name for network in vm.network} == {"VM Network", "sriov-vm", "rdma-vm"}
    card.macAddress, card.sriovBacking.physicalFunctionBacking.id = "00:50:56:00:00:07", OTHER_PORT
    edited = D.VirtualDeviceSpec(operation="edit", device=card)
    lab.run(vm.ReconfigVM_Task(vim.vm.ConfigSpec(deviceChange=[edited])))
    [card_shown] = cards(vm, Sriov)
    assert (card_shown.macAddress, card_shown.sriovBacking.physicalFunctionBacking.id) == (
        "00:50:56:00:00:07",
        OTHER_PORT,
    )
    assert card_shown.backing.port.portKey == card.backing.port.portKey
    removal = D.VirtualDeviceSpec(operation="remove", device=card_shown)
    lab.run(vm.ReconfigVM_Task(vim.vm.ConfigSpec(deviceChange=[removal])))
    assert cards(vm, Sriov) == []
    assert {network.name for network in vm.network} == {"VM Network", "rdma-vm"}
    with pytest.raises(vim.fault.DeviceNotFound):
        lab.run(vm.ReconfigVM_Task(vim.vm.ConfigSpec(deviceChange=[removal])))


@pytest.mark.long
def test_a_copy_has_addresses_and_ports_of_its_own(lab: Lab) -> None:
    first = clone(lab, "node-1", sriov_card(lab), rdma_card(lab))
    second = clone(lab, "node-2", of="node-1")
    mine, its = (
        [
            (network_card.macAddress, getattr(network_card.backing, "port", None) and network_card.backing.port.portKey)
            for network_card in cards_of_copy
        ]
        for cards_of_copy in (cards(first, (Sriov, Rdma)), cards(second, (Sriov, Rdma)))
    )
    assert len({*mine, *its}) == 4
    assert {mac for mac, _ in mine}.isdisjoint(mac for mac, _ in its)


# --- hosts ------------------------------------------------------------------------------------------------------


def sriov(lab: Lab, host: str, port: str) -> Any:
    [port_info] = [gpu for gpu in lab.host(host).config.pciPassthruInfo if gpu.id == port]
    assert isinstance(port_info, vim.host.SriovInfo)
    return port_info


@pytest.mark.long
def test_functions_are_in_force_after_a_reboot(lab: Lab) -> None:
    host = lab.host("esx-01.trn")
    before = sriov(lab, "esx-01.trn", OTHER_PORT)
    assert (before.sriovCapable, before.sriovActive, before.maxVirtualFunctionSupported) == (True, False, 8)
    system = host.configManager.pciPassthruSystem
    config = vim.host.SriovConfig(id=OTHER_PORT, passthruEnabled=False, sriovEnabled=True, numVirtualFunction=4)
    system.UpdatePassthruConfig([config])
    waiting = sriov(lab, "esx-01.trn", OTHER_PORT)
    assert (waiting.sriovEnabled, waiting.sriovActive) == (True, False)
    assert (waiting.numVirtualFunctionRequested, waiting.numVirtualFunction) == (4, 0)
    assert host.summary.rebootRequired
    lab.run(host.EnterMaintenanceMode_Task(0))
    lab.run(host.RebootHost_Task(force=False))
    lab.let_pass(1200)
    after = sriov(lab, "esx-01.trn", OTHER_PORT)
    assert (after.sriovActive, after.numVirtualFunction, host.summary.rebootRequired) == (True, 4, False)
    for wrong in (
        vim.host.SriovConfig(id=OTHER_PORT, passthruEnabled=False, sriovEnabled=True, numVirtualFunction=9),
        vim.host.SriovConfig(id="0000:31:00.0", passthruEnabled=False, sriovEnabled=True, numVirtualFunction=1),
        vim.host.SriovConfig(
            id=OTHER_PORT, passthruEnabled=False, sriovEnabled=True, numVirtualFunction=1, applyNow=True
        ),
    ):
        with pytest.raises(vim.fault.HostConfigFault):
            system.UpdatePassthruConfig([wrong])


@pytest.mark.long
def test_functions_in_use_are_not_taken_away(lab: Lab) -> None:
    vm = clone(lab, "node-1", sriov_card(lab))
    lab.power_on("node-1", "esx-01.trn")
    config = vim.host.SriovConfig(id=PORT, passthruEnabled=False, sriovEnabled=False, numVirtualFunction=0)
    with pytest.raises(vim.fault.HostConfigFault, match="in use"):
        vm.runtime.host.configManager.pciPassthruSystem.UpdatePassthruConfig([config])


@pytest.mark.long
def test_network_cards_are_beside_their_numa_node(lab: Lab) -> None:
    first, second = lab.host("esx-01.trn").hardware.numaInfo.numaNode
    assert OTHER_PORT in first.pciId
    assert PORT in second.pciId
    assert "0000:31:00.0" in first.pciId


# --- saved state ------------------------------------------------------------------------------------------------


def read_networks(lab: Lab) -> list[Any]:
    """What clients can read of networks, of the network of hosts, and of the VM."""
    groups, switches = {}, {}
    for child in lab.datacenter().networkFolder.childEntity:
        if isinstance(child, vim.dvs.DistributedVirtualPortgroup):
            groups[child.name] = (child.key, sorted(child.portKeys))
        elif isinstance(child, vim.DistributedVirtualSwitch):
            switches[child.name] = repr(child.config)
    hosts = [lab.host(f"esx-{number:02}.trn") for number in range(1, 5)]
    configs = [host.config for host in hosts]
    host_configs = [
        repr((config.network, config.pciPassthruInfo, config.option, config.firewall)) for config in configs
    ]
    networks = [sorted(network.name for network in host.network) for host in hosts]
    return [groups, switches, host_configs, networks, repr(lab.vm("node-1").config.hardware.device)]


@pytest.mark.long
def test_all_of_it_is_there_in_the_next_run(tmp_path: Path) -> None:
    state = tmp_path / "state.json"
    with run("training", state) as lab:
        clone(lab, "node-1", sriov_card(lab), rdma_card(lab))
        lab.power_on("node-1", "esx-02.trn")
        tag(lab, "esx-04.trn", "vmk1")
        config = vim.host.SriovConfig(id=OTHER_PORT, passthruEnabled=False, sriovEnabled=True, numVirtualFunction=4)
        lab.host("esx-03.trn").configManager.pciPassthruSystem.UpdatePassthruConfig([config])
        [port_group] = [child for child in lab.datacenter().networkFolder.childEntity if child.name == "rdma-vm"]
        spec = vim.dvs.DistributedVirtualPortgroup.ConfigSpec(name="spare", type="earlyBinding", numPorts=2)
        lab.run(port_group.config.distributedVirtualSwitch.AddDVPortgroup_Task([spec]))
        before = read_networks(lab)
    with run("training", state) as lab:
        assert read_networks(lab) == before
        lab.power_off("node-1")
        with pytest.raises(vim.fault.GenericVmConfigFault, match=r"Net\.PVRDMAVmknic"):
            tag(lab, "esx-02.trn", "")
            lab.power_on("node-1", "esx-02.trn")
        assert lab.host("esx-03.trn").summary.rebootRequired
