"""Config targets over the wire: what hosts offer beyond the bulk read."""

from __future__ import annotations

import pytest

from gpuops.errors import NoPermission
from gpuops.model.devices.gpu import PciAddress
from gpuops.model.vcenter.host import DynamicTarget
from gpuops.model.vcenter.inventory import Inventory
from gpuops.sim.fault_injection.rule import Effect, Rule
from gpuops.sim.server import SimServer
from gpuops.vsphere.reading.host_reads import with_config_targets
from gpuops.vsphere.session import Session

pytestmark = pytest.mark.long


def test_only_hosts_asked_for_get_one(session: Session, inventory: Inventory) -> None:
    requested_host = inventory.find_host("esx-02")
    inventory_with_targets = with_config_targets(session, inventory, [requested_host.ref])
    assert inventory_with_targets.hosts[requested_host.ref].config_target is not None
    assert inventory_with_targets.find_host("esx-01").config_target is None
    assert with_config_targets(session, inventory, ["host-424242"]) is inventory


@pytest.mark.long
def test_it_says_what_static_and_dynamic_backings_and_groups_need(session: Session, inventory: Inventory) -> None:
    inventory_with_targets = with_config_targets(session, inventory, list(inventory.hosts))
    target = inventory_with_targets.find_host("esx-02").config_target
    assert target is not None
    assert [gpu.address for gpu in target.passthrough] == [PciAddress.parse("5e:00.0"), PciAddress.parse("d8:00.0")]
    assert {(gpu.vendor_id, gpu.device_id) for gpu in target.passthrough} == {(0x10DE, 0x26B9)}
    assert len({gpu.system_id for gpu in target.passthrough}) == 1
    assert target.dynamic == (DynamicTarget(0x10DE, 0x26B9, "NVIDIA L40S", "l40s-ml"),)
    [group] = target.device_groups
    assert group.name == "Nvidia:2@grid_a100d-80c%NVLink"
    assert [(member.kind, member.sequence_id, member.profile) for member in group.members] == [
        ("nvidiaVgpu", 0, "grid_a100d-80c"),
        ("nvidiaVgpu", 1, "grid_a100d-80c"),
    ]


@pytest.mark.long
@pytest.mark.parametrize("fault", ["HostNotConnected", "HostNotReachable", "HostCommunication"])
def test_a_host_that_vcenter_cannot_reach_stays_unknown(
    lab: SimServer, session: Session, inventory: Inventory, fault: str
) -> None:
    lab.world.injector.add(Rule(Effect.FAULT, "QueryConfigTarget", fault=fault))
    inventory_with_targets = with_config_targets(session, inventory, list(inventory.hosts))
    assert [host.config_target is None for host in inventory_with_targets.hosts.values()].count(True) == 1


def test_a_missing_privilege_is_said(lab: SimServer, session: Session, inventory: Inventory) -> None:
    lab.world.injector.add(Rule(Effect.FAULT, "QueryConfigTarget", fault="NoPermission"))
    with pytest.raises(NoPermission, match="lacks the privilege"):
        with_config_targets(session, inventory, list(inventory.hosts))


def test_a_session_that_ended_is_renewed(lab: SimServer, session: Session, inventory: Inventory) -> None:
    lab.world.injector.add(Rule(Effect.EXPIRE, "QueryConfigTarget"))
    inventory_with_targets = with_config_targets(session, inventory, list(inventory.hosts))
    assert all(host.config_target is not None for host in inventory_with_targets.hosts.values())
