"""Distributed switches, their port groups, hosts and ports, and network cards of VMs on them, through the wire."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pyVim.connect import Disconnect
from pyVmomi import vim, vmodl

from gpuops.sim.server import start
from tests.sim.lab import Lab, connect

pytestmark = pytest.mark.long

Dvs = vim.dvs.VmwareDistributedVirtualSwitch
Portgroup = vim.dvs.DistributedVirtualPortgroup
Card = vim.vm.device.VirtualVmxnet3
Member = vim.dvs.HostMember


def new_switch(lab: Lab, name: str = "DSwitch", product: str | None = None, **settings: Any) -> Any:
    spec = vim.DistributedVirtualSwitch.CreateSpec(configSpec=Dvs.ConfigSpec(name=name, **settings))
    if product:
        spec.productInfo = vim.dvs.ProductSpec(version=product)
    return lab.run(lab.datacenter().networkFolder.CreateDVS_Task(spec))


def new_portgroup(lab: Lab, switch: Any, name: str = "training", **settings: Any) -> Any:
    fields = {"type": "earlyBinding", "numPorts": 2, "autoExpand": False, **settings}
    lab.run(switch.AddDVPortgroup_Task([Portgroup.ConfigSpec(name=name, **fields)]))
    return next(portgroup for portgroup in switch.portgroup if portgroup.name == name)


def reconfigure(lab: Lab, switch: Any, **settings: Any) -> None:
    lab.run(switch.ReconfigureDvs_Task(Dvs.ConfigSpec(configVersion=switch.config.configVersion, **settings)))


def member(host: Any, operation: str = "add", *nics: str) -> Any:
    backing = Member.PnicBacking(pnicSpec=[Member.PnicSpec(pnicDevice=nic) for nic in nics])
    return Member.ConfigSpec(operation=operation, host=host, backing=backing)


def connected_to(portgroup: Any, key: int = -1, port: str | None = None) -> Any:
    switch = portgroup.config.distributedVirtualSwitch
    connection = vim.dvs.PortConnection(switchUuid=switch.uuid, portgroupKey=portgroup.key, portKey=port)
    backing = vim.vm.device.VirtualEthernetCard.DistributedVirtualPortBackingInfo(port=connection)
    return Card(key=key, backing=backing)


def change_card(lab: Lab, name: str, operation: str, card: Any) -> None:
    change = vim.vm.device.VirtualDeviceSpec(operation=operation, device=card)
    lab.run(lab.vm(name).ReconfigVM_Task(vim.vm.ConfigSpec(deviceChange=[change])))


def cards(vm: Any) -> list[Any]:
    return [device for device in vm.config.hardware.device if isinstance(device, vim.vm.device.VirtualEthernetCard)]


def whole(lab: Lab, **settings: Any) -> tuple[Any, Any]:
    """A switch that both hosts are members of, and a port group on it."""
    switch = new_switch(lab)
    reconfigure(lab, switch, host=[member(lab.host(name), "add", "vmnic1") for name in ("esx-01.lab", "esx-02.lab")])
    return switch, new_portgroup(lab, switch, **settings)


def test_a_new_switch_has_an_uplink_port_group_and_the_settings_of_vsphere(lab: Lab) -> None:
    switch = new_switch(lab, maxMtu=9000, description="for training")
    config = switch.config
    assert type(config) is Dvs.ConfigInfo
    assert (config.name, config.maxMtu, config.description, config.uuid) == (
        "DSwitch",
        9000,
        "for training",
        switch.uuid,
    )
    assert (config.productInfo.vendor, config.numPorts) == ("VMware, Inc.", 0)
    assert [group.name for group in switch.portgroup] == [f"DSwitch-DVUplinks-{switch._moId.rpartition('-')[2]}"]
    assert (switch.portgroup[0].config.uplink, config.uplinkPortgroup) == (True, switch.portgroup)
    assert config.defaultPortConfig.vlan.vlanId == 0
    assert config.defaultPortConfig.securityPolicy.allowPromiscuous.value is False
    assert config.defaultPortConfig.macManagementPolicy.macLearningPolicy.enabled is False
    assert (
        config.defaultPortConfig.uplinkTeamingPolicy.uplinkPortOrder.activeUplinkPort
        == config.uplinkPortPolicy.uplinkPortName
    )
    assert switch in lab.datacenter().networkFolder.childEntity
    manager = lab.si.content.dvSwitchManager
    assert manager.QueryDvsByUuid(switch.uuid) == switch
    assert config.productInfo.version in [spec.version for spec in manager.QueryAvailableDvsSpec(None)]


@pytest.mark.long
def test_what_no_switch_can_be(lab: Lab) -> None:
    new_switch(lab)
    with pytest.raises(vim.fault.DuplicateName):
        new_switch(lab)
    with pytest.raises(vim.fault.InvalidName):
        new_switch(lab, " ")
    with pytest.raises(vmodl.fault.InvalidArgument):
        new_switch(lab, "other", product="1.2.3")
    spec = vim.DistributedVirtualSwitch.CreateSpec(configSpec=Dvs.ConfigSpec(name="other"))
    with pytest.raises(vmodl.fault.NotSupported):
        lab.run(lab.datacenter().vmFolder.CreateDVS_Task(spec))
    entry = Dvs.PvlanMapEntry(primaryVlanId=1, secondaryVlanId=1, pvlanType="promiscuous")
    with pytest.raises(vmodl.fault.NotSupported, match="pvlanConfigSpec"):
        new_switch(lab, "other", pvlanConfigSpec=[Dvs.PvlanConfigSpec(operation="add", pvlanEntry=entry)])
    with pytest.raises(vim.fault.NotFound):
        lab.si.content.dvSwitchManager.QueryDvsByUuid("00")


@pytest.mark.long
def test_hosts_join_once_and_leave_with_their_switch(lab: Lab) -> None:
    switch, portgroup = whole(lab)
    first, second = lab.host("esx-01.lab"), lab.host("esx-02.lab")
    uplinks = switch.config.uplinkPortPolicy.uplinkPortName
    assert {host_member.config.host for host_member in switch.config.host} == {first, second}
    assert [host_member.config.backing.pnicSpec[0].pnicDevice for host_member in switch.config.host] == [
        "vmnic1",
        "vmnic1",
    ]
    assert switch.summary.numPorts == 2 + 2 * len(uplinks)
    assert {*portgroup.host} == {*switch.summary.hostMember} == {first, second}
    assert portgroup in first.network
    (proxy,) = first.config.network.proxySwitch
    assert (proxy.dvsUuid, proxy.dvsName, proxy.mtu) == (switch.uuid, "DSwitch", 1500)
    assert proxy.pnic == ["key-vim.host.PhysicalNic-vmnic1"]
    assert [pair.value for pair in proxy.uplinkPort] == uplinks
    with pytest.raises(vim.fault.AlreadyExists):
        reconfigure(lab, switch, host=[member(first)])
    with pytest.raises(vmodl.fault.NotSupported, match="only with its distributed switch"):
        reconfigure(lab, switch, host=[member(first, "remove")])
    assert switch.summary.numHosts == 2
    lab.run(switch.Destroy_Task())
    assert (first.config.network.proxySwitch, [network.name for network in first.network]) == ([], ["VM Network"])


def test_an_adapter_of_another_switch_is_refused_for_its_host(lab: Lab) -> None:
    switch = new_switch(lab)
    for nic, cause in (("vmnic0", vim.fault.ResourceInUse), ("vmnic7", vim.fault.HostConfigFault)):
        with pytest.raises(vim.fault.DvsOperationBulkFault) as refused:
            reconfigure(lab, switch, host=[member(lab.host("esx-01.lab"), "add", nic)])
        (only,) = refused.value.hostFault
        assert (only.host, type(only.fault)) == (lab.host("esx-01.lab"), cause)
    assert switch.config.host == []


@pytest.mark.long
def test_a_reconfiguration_names_the_version_that_it_changes(lab: Lab) -> None:
    switch = new_switch(lab)
    old = switch.config.configVersion
    joining = [member(lab.host("esx-01.lab"))]
    reconfigure(lab, switch, host=joining)
    with pytest.raises(vim.fault.ConcurrentAccess):
        lab.run(switch.ReconfigureDvs_Task(Dvs.ConfigSpec(configVersion=old, host=joining)))
    with pytest.raises(vmodl.fault.InvalidArgument):
        lab.run(switch.ReconfigureDvs_Task(Dvs.ConfigSpec(host=joining)))
    with pytest.raises(vmodl.fault.NotSupported, match="changes no maxMtu of a distributed switch"):
        reconfigure(lab, switch, maxMtu=9000)
    with pytest.raises(vmodl.fault.NotSupported, match="ReconfigureDVPortgroup_Task is not simulated"):
        new_portgroup(lab, switch).ReconfigureDVPortgroup_Task(Portgroup.ConfigSpec(configVersion="1", numPorts=9))


@pytest.mark.long
def test_a_port_group_has_its_own_settings_and_those_of_its_switch(lab: Lab) -> None:
    allowed = Dvs.SecurityPolicy(inherited=False, macChanges=vim.BoolPolicy(inherited=False, value=True))
    switch = new_switch(lab, defaultPortConfig=Dvs.VmwarePortConfigPolicy(securityPolicy=allowed))
    setting = Dvs.VmwarePortConfigPolicy(vlan=Dvs.VlanIdSpec(inherited=False, vlanId=7))
    portgroup = new_portgroup(lab, switch, defaultPortConfig=setting)
    config = portgroup.config
    assert (config.key, portgroup.key, config.distributedVirtualSwitch) == (portgroup._moId, portgroup._moId, switch)
    assert (config.defaultPortConfig.vlan.vlanId, config.defaultPortConfig.vlan.inherited) == (7, False)
    below = config.defaultPortConfig.securityPolicy
    assert (below.inherited, below.macChanges.inherited, below.macChanges.value) == (True, True, True)
    assert below.forgedTransmits.value is False


@pytest.mark.long
def test_port_groups_are_made_together_or_not_at_all(lab: Lab) -> None:
    switch = new_switch(lab)
    specs = [Portgroup.ConfigSpec(name=name, type="earlyBinding") for name in ("a", "b")]
    lab.run(switch.AddDVPortgroup_Task(specs))
    assert {"a", "b"} < {group.name for group in switch.portgroup}
    with pytest.raises(vim.fault.DuplicateName):
        lab.run(switch.AddDVPortgroup_Task([Portgroup.ConfigSpec(name="c", type="earlyBinding"), specs[0]]))
    with pytest.raises(vmodl.fault.NotSupported):
        lab.run(switch.AddDVPortgroup_Task([Portgroup.ConfigSpec(name="d", type="ephemeral")]))
    trunk = Dvs.TrunkVlanSpec(inherited=False, vlanId=[vim.NumericRange(start=1, end=9)])
    for vlan, refusal in (
        (Dvs.VlanIdSpec(inherited=False, vlanId=4095), vmodl.fault.InvalidArgument),
        (trunk, vmodl.fault.NotSupported),
    ):
        with pytest.raises(refusal):
            new_portgroup(lab, switch, "e", defaultPortConfig=Dvs.VmwarePortConfigPolicy(vlan=vlan))
    assert len(switch.portgroup) == 3


@pytest.mark.long
def test_a_network_card_has_a_port_of_its_own(lab: Lab) -> None:
    switch, portgroup = whole(lab)
    change_card(lab, "ml-07", "add", connected_to(portgroup))
    added = cards(lab.vm("ml-07"))[-1]
    port = added.backing.port
    assert (port.switchUuid, port.portgroupKey, port.portKey in portgroup.portKeys) == (
        switch.uuid,
        portgroup.key,
        True,
    )
    assert portgroup in lab.vm("ml-07").network
    assert portgroup.vm == [lab.vm("ml-07")] == switch.summary.vm
    criteria = vim.dvs.PortCriteria(connected=True, uplinkPort=False)
    (connected_port,) = switch.FetchDVPorts(criteria)
    assert (connected_port.key, connected_port.connectee.connectedEntity, connected_port.connectee.nicKey) == (
        port.portKey,
        lab.vm("ml-07"),
        str(added.key),
    )
    assert connected_port.connectionCookie == port.connectionCookie
    assert connected_port.state.runtimeInfo.linkUp is False
    lab.power_on("ml-07")
    (active,) = switch.FetchDVPorts(vim.dvs.PortCriteria(active=True, uplinkPort=False))
    assert active.key == port.portKey
    with pytest.raises(vim.fault.InvalidDeviceBacking):
        change_card(lab, "ml-08", "add", connected_to(portgroup, port=port.portKey))
    change_card(lab, "ml-08", "add", connected_to(portgroup))
    with pytest.raises(vim.fault.InvalidDeviceBacking, match="is free"):
        change_card(lab, "ml-08", "add", connected_to(portgroup))
    change_card(lab, "ml-07", "remove", added)
    assert portgroup.vm == [lab.vm("ml-08")]


@pytest.mark.long
def test_a_copy_has_other_ports_and_a_port_group_grows_or_not(lab: Lab) -> None:
    _, portgroup = whole(lab, autoExpand=True, numPorts=1)
    change_card(lab, "ml-07", "edit", connected_to(portgroup, key=cards(lab.vm("ml-07"))[0].key))
    spec = vim.vm.CloneSpec(location=vim.vm.RelocateSpec(), powerOn=False)
    clone = lab.run(lab.vm("ml-07").CloneVM_Task(lab.vm("ml-07").parent, "clone", spec))
    ports = [cards(vm)[0].backing.port.portKey for vm in (lab.vm("ml-07"), clone)]
    assert sorted(ports) == sorted(portgroup.portKeys)
    assert (len({*ports}), portgroup.config.numPorts) == (2, 2)


@pytest.mark.long
def test_nothing_goes_that_is_in_use(lab: Lab) -> None:
    switch, portgroup = whole(lab)
    host = lab.host("esx-01.lab")
    change_card(lab, "ml-07", "add", connected_to(portgroup))
    for entity in (switch, portgroup):
        with pytest.raises(vim.fault.ResourceInUse):
            lab.run(entity.Destroy_Task())
    with pytest.raises(vmodl.fault.NotSupported):
        lab.run(next(group for group in switch.portgroup if group.config.uplink).Destroy_Task())
    account = vim.host.ConnectSpec(hostName="esx-09.lab", userName="root", password="any", force=True)
    spare = lab.run(lab.cluster().AddHost_Task(account, True))
    reconfigure(lab, switch, host=[member(spare)])
    lab.run(spare.EnterMaintenanceMode_Task(0))
    with pytest.raises(vim.fault.ResourceInUse) as refused:
        lab.run(spare.Destroy_Task())
    assert refused.value.name == switch.name
    change_card(lab, "ml-07", "remove", cards(lab.vm("ml-07"))[-1])
    lab.run(portgroup.Destroy_Task())
    assert [group.config.uplink for group in switch.portgroup] == [True]
    lab.run(switch.Destroy_Task())
    assert [network.name for network in lab.datacenter().network] == ["VM Network"]
    assert (host.config.network.proxySwitch, [network.name for network in host.network]) == ([], ["VM Network"])


@pytest.mark.long
def test_a_vm_connects_only_where_its_host_is_a_member(lab: Lab) -> None:
    portgroup = new_portgroup(lab, new_switch(lab))
    with pytest.raises(vim.fault.InvalidDeviceBacking):
        change_card(lab, "ml-07", "add", connected_to(portgroup))


@pytest.mark.long
def test_config_targets_list_port_groups_apart_from_networks(lab: Lab) -> None:
    switch, portgroup = whole(lab)
    target = lab.cluster().environmentBrowser.QueryConfigTarget()
    assert [network.name for network in target.network] == ["VM Network"]
    assert portgroup.key in [network_info.portgroupKey for network_info in target.distributedVirtualPortgroup]
    assert [network_info.switchUuid for network_info in target.distributedVirtualSwitch] == [switch.uuid]
    manager = lab.si.content.dvSwitchManager
    assert manager.DVSManagerLookupDvPortGroup(switch.uuid, portgroup.key) == portgroup
    with pytest.raises(vim.fault.NotFound):
        manager.DVSManagerLookupDvPortGroup(switch.uuid, "dvportgroup-1")


@pytest.mark.long
def test_who_may_not_change_a_switch_is_refused(lab: Lab) -> None:
    switch = new_switch(lab)
    authority = lab.world.authority
    authority.permit(next(iter(lab.world.sessions)).user, authority.add_role("viewer", {"System.Read"}))
    with pytest.raises(vim.fault.NoPermission) as refused:
        reconfigure(lab, switch, host=[member(lab.host("esx-01.lab"))])
    assert refused.value.privilegeId == "DVSwitch.Modify"


@pytest.mark.long
def test_a_saved_state_keeps_switches_port_groups_and_connections(tmp_path: Path) -> None:
    file = tmp_path / "state.json"
    with start("lab", tls=False, clock="stepped", state=file) as server:
        lab = Lab(server.world, connect(server))
        switch, portgroup = whole(lab)
        change_card(lab, "ml-07", "add", connected_to(portgroup))
        before = (switch.config, portgroup.config, portgroup.portKeys)
        Disconnect(lab.si)
    with start("lab", tls=False, clock="stepped", state=file) as server:
        lab = Lab(server.world, connect(server))
        switch = vim.dvs.VmwareDistributedVirtualSwitch(switch._moId, lab.si._stub)
        portgroup = vim.dvs.DistributedVirtualPortgroup(portgroup._moId, lab.si._stub)
        assert repr((switch.config, portgroup.config, portgroup.portKeys)) == repr(before)
        assert portgroup.vm == [lab.vm("ml-07")]
        lab.run(lab.vm("ml-07").Destroy_Task())
        lab.run(switch.Destroy_Task())
        Disconnect(lab.si)
