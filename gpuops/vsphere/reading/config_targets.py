"""Reads the DirectPath I/O devices and device groups that hosts offer, and vCenter's stun estimates.

Bulk reads do not contain them. EnvironmentBrowser.QueryConfigTarget is called for each host that a plan may use, for
several hosts at a time.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from gpuops.errors import GpuopsError, NotConnected
from gpuops.model.vcenter.host import ConfigTarget, DynamicTarget, Host, PassthroughTarget, StunEstimate
from gpuops.model.vcenter.host_settings import DeviceGroup, DeviceGroupMember
from gpuops.vsphere.transport.messages import pci_address

if TYPE_CHECKING:
    from gpuops.model.vcenter.inventory import Inventory
    from gpuops.vsphere.session import Session

AT_A_TIME: Final = 4
"""Below the number of connections pyVmomi keeps open."""


def with_config_targets(session: Session, inventory: Inventory, hosts: Collection[str]) -> Inventory:
    """Return the snapshot with the config targets of these hosts, except hosts that vCenter cannot reach.

    Raises NotConnected and its subclasses, NoPermission.
    """
    requested_hosts = [inventory.hosts[ref] for ref in hosts if ref in inventory.hosts]
    if not requested_hosts:
        return inventory
    with ThreadPoolExecutor(
        max_workers=min(AT_A_TIME, len(requested_hosts)), thread_name_prefix="config-target"
    ) as pool:
        return inventory.completed(hosts=pool.map(lambda host: _with_config_target(session, host), requested_hosts))


def _with_config_target(session: Session, host: Host) -> Host:
    """Return the host with its config target; as it is if vCenter cannot reach it."""
    from pyVmomi import vmodl

    target = session.host(host.ref)
    try:
        browser = session.read(lambda: target.parent.environmentBrowser, subject=host.name)
        offered = session.read(lambda: browser.QueryConfigTarget(target), subject=host.name)
    except NotConnected:
        raise
    except GpuopsError as error:
        if isinstance(error.__cause__, vmodl.fault.HostCommunication):
            return host
        raise
    if offered is None:
        return host
    with session.decoding("QueryConfigTarget"):
        return replace(host, config_target=config_target(offered))


def config_target(offered: Any) -> ConfigTarget:
    """Return a vim.vm.ConfigTarget as a value of the model, without devices that have no PCI address."""
    return ConfigTarget(
        passthrough=tuple(_passthrough(offered.pciPassthrough or ())),
        dynamic=tuple(
            DynamicTarget(device.vendorId, device.deviceId, device.deviceName or "", device.customLabel or None)
            for device in offered.dynamicPassthrough or ()
        ),
        device_groups=device_groups(offered.vendorDeviceGroupInfo or ()),
        stuns=tuple(_stuns(offered.vgpuProfileInfo or ())),
    )


def _stuns(profiles: Iterable[Any]) -> Iterator[StunEstimate]:
    """Yield the stun estimates, without missing or negative ones, which count as unknown."""
    for profile in profiles:
        for estimate in getattr(profile, "stunTimeEstimates", None) or ():
            if estimate.stunTime is not None and estimate.stunTime >= 0 and estimate.migrationBW is not None:
                yield StunEstimate(profile.profileName, estimate.migrationBW, estimate.stunTime)


def device_groups(offered: Iterable[Any]) -> tuple[DeviceGroup, ...]:
    """Return the vim.vm.VendorDeviceGroupInfo objects as values of the model."""
    return tuple(
        DeviceGroup(group.deviceGroupName, tuple(_members(group.componentDeviceInfo or ()))) for group in offered
    )


def _passthrough(offered: Iterable[Any]) -> Iterator[PassthroughTarget]:
    for target in offered:
        device = target.pciDevice
        if (address := pci_address(device.id)) is not None:
            name, system_id = target.name or device.deviceName or "", target.systemId or ""
            # signed 16-bit fields (vSphere API reference, HostPciDevice)
            yield PassthroughTarget(address, name, system_id, device.vendorId & 0xFFFF, device.deviceId & 0xFFFF)


def _members(components: Iterable[Any]) -> Iterator[DeviceGroupMember]:
    """Yield the components in the order of their sequence ids, taken from the template devices they come with."""
    members = [_member(position, component) for position, component in enumerate(components)]
    yield from sorted(members, key=lambda member: member.sequence_id)


def _member(position: int, component: Any) -> DeviceGroupMember:
    group = component.device.deviceGroupInfo
    vendor_id, device_id = _identity(component.device.backing)
    return DeviceGroupMember(
        kind=component.type,
        sequence_id=position if group is None else group.sequenceId,
        profile=getattr(component.device.backing, "vgpu", None) or None,
        vendor_id=vendor_id,
        device_id=device_id,
    )


def _identity(backing: Any) -> tuple[int | None, int | None]:
    """Return the vendor id and device id of a template's backing; (None, None) for a vGPU."""
    from pyVmomi import vim

    kinds = vim.vm.device.VirtualPCIPassthrough
    if isinstance(backing, kinds.DynamicBackingInfo) and backing.allowedDevice:
        return backing.allowedDevice[0].vendorId, backing.allowedDevice[0].deviceId
    if isinstance(backing, kinds.DeviceBackingInfo):
        is_hexadecimal = re.fullmatch("(0x)?[0-9A-Fa-f]+", backing.deviceId) is not None
        return backing.vendorId & 0xFFFF, int(backing.deviceId, 16) if is_hexadecimal else None
    return None, None
