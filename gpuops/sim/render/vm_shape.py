"""What the large properties of VMs have in common: VMs that differ in their names and uuids alone have one shape.

A shape is read from a copy of the state with placeholders for what is a VM's own. All other fields of the state are in
its key, but for those named here, which these properties do not show: a field that is new makes more shapes, never a
wrong one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, replace
from datetime import datetime
from operator import attrgetter
from typing import Any, Final, NamedTuple

from pyVmomi import vim

from gpuops.sim.core.managed_object import SharedValue
from gpuops.sim.inventory.managed_entity import custom_values
from gpuops.sim.render import vm_config, vm_runtime
from gpuops.sim.render.devices import PLACEHOLDERS, devices, identity, shape_of
from gpuops.sim.state.host_state import HostState
from gpuops.sim.state.vm_state import Power, VmState

NAME, FILES, UUID, INSTANCE, VM, HOST = (
    f"\ue000{name}\ue000" for name in ("name", "files", "uuid", "instance", "vm", "host")
)
OWN: Final = frozenset({"name", "files", "uuid", "instance_uuid"})
NOT_SHOWN: Final = frozenset(
    {"attributes", "folder", "pool", "host", "power", "boot_time", "guest_boots", "suspend_time", "clean_power_off"}
    | {"console_connections", "cpu_usage_mhz", "guest_memory_mib", "seats", "question", "snapshots", "current_snapshot"}
    | {"guest_users", "past", "slowed_by"}
)
_configured: Final = attrgetter(*(each.name for each in fields(VmState) if each.name not in OWN | NOT_SHOWN))


def config(vm: VmState, host: HostState) -> SharedValue:
    """Return the shared form of `config`, and the texts of this VM that replace its placeholders."""
    vm_identity = identity(vm)
    fills = {**_names(vm), UUID: vm.uuid, INSTANCE: vm.instance_uuid, PLACEHOLDERS.disk_uuid: vm_identity.disk_uuid}
    fills[PLACEHOLDERS.mac] = vm_identity.mac
    key = (_configured(vm), vm.power is Power.ON, host.board_names)

    def read() -> Any:
        blank = _blank(vm)
        return vm_config.config(blank, host, PLACEHOLDERS._replace(home=blank.home))

    return SharedValue(key, read, fills)


def device_list(vm: VmState, host: HostState) -> SharedValue:
    fills = dict(zip(PLACEHOLDERS, identity(vm), strict=True))
    return SharedValue(shape_of(vm, host), lambda: devices(vm, host, PLACEHOLDERS), fills)


class Company(NamedTuple):
    """What `runtime` of a VM shows that is not in its own state."""

    now: datetime
    connection: str
    host_mhz: int


_ran: Final = attrgetter(
    *("power", "boot_time", "guest_boots", "suspend_time", "clean_power_off", "console_connections", "question"),
    *("cpus", "memory_mib"),
)


def runtime(vm: VmState, company: Company) -> SharedValue:
    return SharedValue(_running(vm, company), lambda: _runtime(vm, company), {HOST: vm.host})


def summary(vm: VmState, company: Company, attributes: Mapping[int, str], moid: str) -> SharedValue:
    """Return the shared form of `summary`, and the texts of this VM that replace its placeholders."""
    vm_identity = identity(vm)
    fills = {**_names(vm), UUID: vm.uuid, INSTANCE: vm.instance_uuid, HOST: vm.host, VM: moid}
    fills[PLACEHOLDERS.address] = vm_identity.address
    custom = tuple(sorted(attributes.items()))
    key = (_configured(vm), _running(vm, company), vm.cpu_usage_mhz, vm.guest_memory_mib, custom)

    def read() -> Any:
        running, entity = _runtime(vm, company), vim.VirtualMachine(VM)
        return vm_runtime.summary(
            _blank(vm), running, entity, custom_values(dict(attributes)), company.now, PLACEHOLDERS
        )

    return SharedValue(key, read, fills)


def guest(vm: VmState) -> SharedValue:
    vm_identity = identity(vm)
    key = (vm.power, vm.template, vm.guest_boots, vm.guest_id, vm.hardware.cards)
    fills = {NAME: vm.name, PLACEHOLDERS.mac: vm_identity.mac, PLACEHOLDERS.address: vm_identity.address}
    return SharedValue(key, lambda: vm_runtime.guest(_blank(vm), PLACEHOLDERS), fills)


def _running(vm: VmState, company: Company) -> tuple[Any, ...]:
    interval_s, up_s = vm_runtime.suspend_interval_s(vm, company.now), vm_runtime.uptime_s(vm, company.now)
    return (_ran(vm), interval_s, up_s, company.connection, company.host_mhz)


def _runtime(vm: VmState, company: Company) -> Any:
    now, connection, host_mhz = company
    return vm_runtime.runtime(replace(vm, host=HOST), now=now, connection=connection, host_mhz=host_mhz)


def layout(vm: VmState) -> SharedValue:
    return SharedValue((vm.hardware.disks, vm.template.datastore), lambda: vm_runtime.layout(_blank(vm)), _names(vm))


def layout_ex(vm: VmState) -> SharedValue:
    key = (vm.hardware.disks, vm.template.datastore, vm.suspend_file_mib, vm.changed_at or vm.created_at)
    return SharedValue(key, lambda: vm_runtime.layout_ex(_blank(vm)), _names(vm))


def storage(vm: VmState) -> SharedValue:
    key = (vm.hardware.gib, vm.suspend_file_mib, vm.datastore, vm.changed_at or vm.created_at)
    return SharedValue(key, lambda: vm_runtime.storage(vm))


def resource_config(vm: VmState, moid: str) -> SharedValue:
    key = (vm.change_version, vm.cpu_reservation_mhz, vm.cpus, vm.reserved_mib, vm.memory_mib)
    return SharedValue(key, lambda: vm_config.resource_config(vm, vim.VirtualMachine(VM)), {VM: moid})


def _blank(vm: VmState) -> VmState:
    return replace(vm, name=NAME, files=FILES, uuid=UUID, instance_uuid=INSTANCE)


def _names(vm: VmState) -> dict[str, str]:
    return {NAME: vm.name, FILES: vm.files or vm.name}
