"""Standard networking of a host through the wire: switches, port groups, VMkernel adapters."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyVim.connect import Disconnect
from pyVmomi import vim, vmodl

from gpuops.sim.server import SimServer, start
from tests.sim.conftest import connect

Switch = vim.host.VirtualSwitch.Specification
Group = vim.host.PortGroup.Specification


@pytest.fixture
def lab() -> Iterator[SimServer]:
    with start("lab", tls=False, clock="stepped") as server:
        yield server
    assert server.world.bugs == []


@pytest.fixture
def hosts(lab: SimServer) -> Iterator[list[Any]]:
    si = connect(lab)
    yield [vim.HostSystem(host.moid, si._stub) for host in lab.world.by_type("HostSystem")]
    Disconnect(si)


def group(name: str, vlan: int = 0, switch: str = "vSwitch0") -> Any:
    return Group(name=name, vlanId=vlan, vswitchName=switch, policy=vim.host.NetworkPolicy())


@pytest.mark.long
def test_a_port_group_is_a_network_while_any_host_has_it(hosts: list[Any]) -> None:
    first, second = hosts
    for host in hosts:
        host.configManager.networkSystem.AddPortGroup(group("training", 7))
    assert {each.name for each in first.network} == {"VM Network", "training"}
    (network,) = [each for each in second.network if each.name == "training"]
    assert {each.name for each in network.host} == {first.name, second.name}
    assert [each.spec.vlanId for each in first.config.network.portgroup if each.spec.name == "training"] == [7]
    for host in hosts:
        host.configManager.networkSystem.RemovePortGroup("training")
    assert [each.name for each in first.network] == ["VM Network"]
    with pytest.raises(vmodl.fault.ManagedObjectNotFound):
        _ = network.name


@pytest.mark.long
def test_a_switch_comes_changes_and_goes_with_its_port_groups(hosts: list[Any]) -> None:
    system = hosts[0].configManager.networkSystem
    system.AddVirtualSwitch("vSwitch1", Switch(numPorts=64, mtu=9000))
    system.AddPortGroup(group("storage", switch="vSwitch1"))
    system.UpdateVirtualSwitch("vSwitch1", Switch(numPorts=64, mtu=1600))
    (made,) = [each for each in system.networkInfo.vswitch if each.name == "vSwitch1"]
    assert (made.mtu, made.portgroup) == (1600, ["key-vim.host.PortGroup-storage"])
    system.RemoveVirtualSwitch("vSwitch1")
    assert [each.name for each in hosts[0].config.network.vswitch] == ["vSwitch0"]
    assert [each.spec.name for each in system.networkConfig.portgroup] == ["VM Network", "Management Network"]


def test_what_is_used_taken_or_unknown_is_refused(hosts: list[Any]) -> None:
    system = hosts[0].configManager.networkSystem
    for call in (
        lambda: system.RemovePortGroup("VM Network"),
        lambda: system.RemovePortGroup("Management Network"),
        lambda: system.RemoveVirtualSwitch("vSwitch0"),
        lambda: system.AddVirtualSwitch(
            "vSwitch1", Switch(numPorts=8, bridge=vim.host.VirtualSwitch.BondBridge(nicDevice=["vmnic0"]))
        ),
    ):
        with pytest.raises(vim.fault.ResourceInUse):
            call()
    with pytest.raises(vim.fault.AlreadyExists):
        system.AddPortGroup(group("VM Network"))
    with pytest.raises(vim.fault.AlreadyExists):
        system.AddVirtualSwitch("vSwitch0")
    with pytest.raises(vim.fault.NotFound, match="no virtual switch vSwitch9"):
        system.AddPortGroup(group("x", switch="vSwitch9"))
    with pytest.raises(vim.fault.NotFound, match="no port group x"):
        system.UpdatePortGroup("x", group("x"))
    with pytest.raises(vim.fault.NotFound, match="no VMkernel adapter vmk9"):
        system.RemoveVirtualNic("vmk9")
    with pytest.raises(vim.fault.HostConfigFault, match="only management adapter"):
        system.RemoveVirtualNic("vmk0")
    with pytest.raises(vmodl.fault.InvalidArgument):
        system.AddPortGroup(group("x", 5000))


def test_an_adapter_is_made_for_a_service(hosts: list[Any]) -> None:
    managers = hosts[0].configManager
    ip = vim.host.IpConfig(dhcp=False, ipAddress="198.51.100.7", subnetMask="255.255.255.0")
    made = managers.networkSystem.AddVirtualNic("VM Network", vim.host.VirtualNic.Specification(ip=ip, mtu=9000))
    assert made == "vmk1"
    managers.virtualNicManager.SelectVnicForNicType("vsan", made)
    assert managers.virtualNicManager.QueryNetConfig("vsan").selectedVnic == ["vsan.key-vim.host.VirtualNic-vmk1"]
    (shown,) = [each for each in hosts[0].config.network.vnic if each.device == made]
    assert (shown.spec.ip.ipAddress, shown.spec.mtu) == ("198.51.100.7", 9000)
    managers.virtualNicManager.DeselectVnicForNicType("vsan", made)
    managers.networkSystem.RemoveVirtualNic(made)
    assert [each.device for each in managers.networkSystem.networkInfo.vnic] == ["vmk0"]


def test_an_adapter_made_by_dhcp_reads_back_so(hosts: list[Any]) -> None:
    system = hosts[0].configManager.networkSystem
    device = system.AddVirtualNic("VM Network", vim.host.VirtualNic.Specification(ip=vim.host.IpConfig(dhcp=True)))

    def uses_dhcp() -> bool:
        (adapter,) = [vnic for vnic in hosts[0].config.network.vnic if vnic.device == device]
        return bool(adapter.spec.ip.dhcp)

    assert uses_dhcp()
    system.UpdateVirtualNic(device, vim.host.VirtualNic.Specification(mtu=9000))
    assert uses_dhcp()
    ip = vim.host.IpConfig(dhcp=False, ipAddress="198.51.100.7", subnetMask="255.255.255.0")
    system.UpdateVirtualNic(device, vim.host.VirtualNic.Specification(ip=ip))
    assert not uses_dhcp()


@pytest.mark.long
def test_networks_and_settings_of_hosts_are_kept_in_a_saved_state(tmp_path: Path) -> None:
    file = tmp_path / "state.json"
    with start("lab", tls=False, clock="stepped", state=file) as server:
        si = connect(server)
        system = vim.HostSystem(next(server.world.by_type("HostSystem")).moid, si._stub).configManager.networkSystem
        system.AddVirtualSwitch("vSwitch1", Switch(numPorts=64, mtu=9000))
        system.AddPortGroup(group("training", 7, "vSwitch1"))
        Disconnect(si)
    with start("lab", tls=False, clock="stepped", state=file) as server:
        (network,) = [each for each in server.world.by_type("Network") if each.name == "training"]
        host = next(server.world.by_type("HostSystem"))
        assert network.moid in host.state.networks
        switch = host.state.network.switch("vSwitch1")
        assert (switch.mtu, switch.policy.standby, host.state.network.group("training").vlan) == (9000, (), 7)
        assert list(network.read("host")) == [host]


def test_a_host_shows_its_running_stack(hosts: list[Any]) -> None:
    (running,) = hosts[0].runtime.networkRuntimeInfo.netStackInstanceRuntimeInfo
    assert (running.netStackInstanceKey, running.state) == (hosts[0].config.network.netStackInstance[0].key, "active")
