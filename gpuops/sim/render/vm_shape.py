"""Shapes of the large properties of VMs: VMs that differ only in their names and uuids share one rendered value.

A shape is rendered from a copy of the state with placeholders for the VM's own values. Its key holds all other fields
of the state except those in NOT_SHOWN, which these properties do not show. A field that is added to VmState is in the
key at first: that makes more shapes than needed, never a wrong one.
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
OWN_FIELDS: Final = frozenset({"name", "files", "uuid", "instance_uuid"})
NOT_SHOWN: Final = frozenset(
    {"attributes", "folder", "pool", "host", "power", "boot_time", "guest_boots", "suspend_time", "clean_power_off"}
    | {"console_connections", "cpu_usage_mhz", "guest_memory_mib", "seats", "question", "snapshots", "current_snapshot"}
    | {"guest_users", "past", "slowed_by"}
)
_configured_fields: Final = attrgetter(
    *(field.name for field in fields(VmState) if field.name not in OWN_FIELDS | NOT_SHOWN)
)


def config(vm: VmState, host: HostState) -> SharedValue:
    """Return the shared form of `config`, and the texts of this VM that replace its placeholders."""
    vm_identity = identity(vm)
    fills = {
        **_name_fills(vm),
        UUID: vm.uuid,
        INSTANCE: vm.instance_uuid,
        PLACEHOLDERS.disk_uuid: vm_identity.disk_uuid,
    }
    fills[PLACEHOLDERS.mac] = vm_identity.mac
    key = (_configured_fields(vm), vm.power is Power.ON, host.board_names)

    def read() -> Any:
        state_with_placeholders = _with_placeholders(vm)
        return vm_config.config(state_with_placeholders, host, PLACEHOLDERS._replace(home=state_with_placeholders.home))

    return SharedValue(key, read, fills)


def device_list(vm: VmState, host: HostState) -> SharedValue:
    fills = dict(zip(PLACEHOLDERS, identity(vm), strict=True))
    return SharedValue(shape_of(vm, host), lambda: devices(vm, host, PLACEHOLDERS), fills)


class RuntimeContext(NamedTuple):
    """The values that `runtime` of a VM shows and its state does not hold."""

    now: datetime
    connection: str
    host_mhz: int


_runtime_fields: Final = attrgetter(
    *("power", "boot_time", "guest_boots", "suspend_time", "clean_power_off", "console_connections", "question"),
    *("cpus", "memory_mib"),
)


def runtime(vm: VmState, context: RuntimeContext) -> SharedValue:
    return SharedValue(_runtime_key(vm, context), lambda: _render_runtime(vm, context), {HOST: vm.host})


def summary(vm: VmState, context: RuntimeContext, attributes: Mapping[int, str], moid: str) -> SharedValue:
    """Return the shared form of `summary`, and the texts of this VM that replace its placeholders."""
    vm_identity = identity(vm)
    fills = {**_name_fills(vm), UUID: vm.uuid, INSTANCE: vm.instance_uuid, HOST: vm.host, VM: moid}
    fills[PLACEHOLDERS.address] = vm_identity.address
    custom = tuple(sorted(attributes.items()))
    key = (_configured_fields(vm), _runtime_key(vm, context), vm.cpu_usage_mhz, vm.guest_memory_mib, custom)

    def read() -> Any:
        running, entity = _render_runtime(vm, context), vim.VirtualMachine(VM)
        return vm_runtime.summary(
            _with_placeholders(vm), running, entity, custom_values(dict(attributes)), context.now, PLACEHOLDERS
        )

    return SharedValue(key, read, fills)


def guest(vm: VmState) -> SharedValue:
    vm_identity = identity(vm)
    key = (vm.power, vm.template, vm.guest_boots, vm.guest_id, vm.hardware.cards)
    fills = {NAME: vm.name, PLACEHOLDERS.mac: vm_identity.mac, PLACEHOLDERS.address: vm_identity.address}
    return SharedValue(key, lambda: vm_runtime.guest(_with_placeholders(vm), PLACEHOLDERS), fills)


def _runtime_key(vm: VmState, context: RuntimeContext) -> tuple[Any, ...]:
    interval_s, up_s = vm_runtime.suspend_interval_s(vm, context.now), vm_runtime.uptime_s(vm, context.now)
    return (_runtime_fields(vm), interval_s, up_s, context.connection, context.host_mhz)


def _render_runtime(vm: VmState, context: RuntimeContext) -> Any:
    now, connection, host_mhz = context
    return vm_runtime.runtime(replace(vm, host=HOST), now=now, connection=connection, host_mhz=host_mhz)


def layout(vm: VmState) -> SharedValue:
    return SharedValue(
        (vm.hardware.disks, vm.template.datastore), lambda: vm_runtime.layout(_with_placeholders(vm)), _name_fills(vm)
    )


def layout_ex(vm: VmState) -> SharedValue:
    key = (vm.hardware.disks, vm.template.datastore, vm.suspend_file_mib, vm.changed_at or vm.created_at)
    return SharedValue(key, lambda: vm_runtime.layout_ex(_with_placeholders(vm)), _name_fills(vm))


def storage(vm: VmState) -> SharedValue:
    key = (vm.hardware.gib, vm.suspend_file_mib, vm.datastore, vm.changed_at or vm.created_at)
    return SharedValue(key, lambda: vm_runtime.storage(vm))


def resource_config(vm: VmState, moid: str) -> SharedValue:
    key = (vm.change_version, vm.cpu_reservation_mhz, vm.cpus, vm.reserved_mib, vm.memory_mib)
    return SharedValue(key, lambda: vm_config.resource_config(vm, vim.VirtualMachine(VM)), {VM: moid})


def _with_placeholders(vm: VmState) -> VmState:
    return replace(vm, name=NAME, files=FILES, uuid=UUID, instance_uuid=INSTANCE)


def _name_fills(vm: VmState) -> dict[str, str]:
    return {NAME: vm.name, FILES: vm.files or vm.name}
