"""Attach: give a VM a vGPU, several, a whole GPU, or a device group; at once, whole, or not at all.

Preflight -> goal -> place -> one reconfigure, with the stop, the move and the start that were allowed around it.
Every reason against it is found before anything is planned, and all of them are said together.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import Annotated

from gpuops.errors import ProfileUnknown, UsageError
from gpuops.model.catalog import Catalog
from gpuops.model.gpu import PciAddress
from gpuops.model.host import Host
from gpuops.model.inventory import Inventory
from gpuops.model.numa import NumaPolicy
from gpuops.model.vm import GpuDevice, Vm
from gpuops.plan.core.api_version import unspoken
from gpuops.plan.core.device_signature import gpu_names, option_of, signature
from gpuops.plan.core.options import Names, Option, VmName, word
from gpuops.plan.core.plan import Plan, Rejection, refuse
from gpuops.plan.devices.goal import Goal, broken_groups, named, other_gpus, vgpus
from gpuops.plan.devices.requested import Answer, device_goal, dynamic_goal, group_goal, profile_meant
from gpuops.plan.placement.host_filters import unreachable
from gpuops.plan.placement.wanted import PinPolicy
from gpuops.plan.vm.attachment import Ask, is_there, left_as_it_is, planned
from gpuops.plan.vm.power import POWER_HELP, MoveMode, PowerPolicy, power_blockers
from gpuops.plan.vm.preflight import state_blockers
from gpuops.plan.vm.target_hosts import able_instead, hosts_for, move_blockers, others_with_gpus, unread


@dataclass(frozen=True, slots=True)
class Attach:
    """What a VM is to have. Exactly one of `profile`, `device`, dynamic (`dynamic`, `label`, `device_type`) and
    `device_group` says which devices; the others how far gpuops may go for them."""

    vm: VmName
    profile: Annotated[str | None, Option("vGPU profile: a100-3-20c.", "NAME", Names.PROFILES)] = None
    count: Annotated[int | None, Option("How many in all (not: how many more); default one.", "N")] = None
    """None = one, or as many as it has and as it replaces."""
    device: Annotated[
        tuple[str, ...], Option("A whole GPU, DirectPath I/O: 0000:3b:00.0. May be repeated.", "PCI-ADDRESS")
    ] = ()
    dynamic: Annotated[bool, Option("Any whole GPU of a kind, Dynamic DirectPath I/O.")] = False
    label: Annotated[str | None, Option("Hardware label the dynamic one must carry.", "LABEL")] = None
    device_type: Annotated[
        tuple[str, ...], Option("Kind of the dynamic one: 10de:20f1. May be repeated.", "VENDOR:DEVICE")
    ] = ()
    device_group: Annotated[str | None, Option("Vendor device group: Nvidia:2@grid_a100d-80c%NVLink.", "NAME")] = None
    replace: Annotated[str | None, Option("The profile, PCI address or `dynamic` that gives way.", "OLD")] = None
    add: Annotated[bool, Option("Other GPU devices of the VM stay beside the new ones.")] = False
    move: Annotated[MoveMode | None, Option("cold: the VM may be moved, switched off, to a host that has the GPU.")] = (
        None
    )
    pin: Annotated[PinPolicy, Option("auto: bind a vGPU to one GPU where --numa required depends on it.")] = (
        PinPolicy.AUTO
    )
    numa: Annotated[NumaPolicy, Option("How much CPU, memory and GPU must share a NUMA node.")] = NumaPolicy.PREFERRED
    power: Annotated[PowerPolicy, Option(POWER_HELP)] = PowerPolicy.REFUSE
    host: Annotated[str | None, Option("The host it is to be on.", "NAME", Names.HOSTS)] = None
    """None = its own, or with a move the best."""

    def __post_init__(self) -> None:
        """Text becomes words, lists become tuples. Raises UsageError."""
        # Frozen for everybody else: a request is compared and kept, and must not change after this.
        put = partial(object.__setattr__, self)
        put("device", tuple(self.device))
        put("device_type", tuple(self.device_type))
        put("move", None if self.move is None else word(MoveMode, self.move, "move"))
        put("pin", word(PinPolicy, self.pin, "pin"))
        put("numa", word(NumaPolicy, self.numa, "numa"))
        put("power", word(PowerPolicy, self.power, "power"))

    def vm_details(self, inventory: Inventory) -> Collection[str]:
        """Refs of the VMs whose devices the plan needs: those on hosts without GPUs are not read in bulk."""
        vm = inventory.find_vm(self.vm)
        return (vm.ref,) if vm.devices is None else ()

    def config_targets(self, inventory: Inventory) -> Collection[str]:
        """Refs of the hosts whose QueryConfigTarget the plan needs: for static DirectPath and device groups."""
        if not self.device and self.device_group is None:
            return ()
        hosts = hosts_for(inventory.find_vm(self.vm), self.host, self.move, inventory)
        wanted = {PciAddress.parse(text) for text in self.device}
        return tuple(
            host.ref
            for host in hosts
            if len(hosts) == 1
            or self.device_group
            or host.ref == inventory.find_vm(self.vm).host  # may have it as a device that it does not list as a GPU
            or all(host.gpu(address) for address in wanted)
        )

    def plan(self, inventory: Inventory, catalog: Catalog, now: datetime) -> Plan:
        """The attachment planned on this snapshot. Raises UsageError for options or names that mean nothing here."""
        self._check()
        vm = inventory.find_vm(self.vm)
        beyond = unspoken(
            inventory.api_version,
            dynamic=self._is_dynamic,
            label=self.label is not None,
            group=self.device_group is not None,
        )
        if beyond is not None:
            return refuse(Rejection(vm.name, beyond, hint="leave that option out, or use a newer vCenter"))
        hosts = hosts_for(vm, self.host, self.move, inventory)
        blockers = (*move_blockers(vm, hosts, self.move, inventory), *state_blockers(vm))
        if vm.devices is None:
            return refuse(*blockers, *(out for host in hosts[:1] if (out := unreachable(host)) is not None))
        old = named(self.replace, vm) if self.replace else ()
        goal = self._goal(vm, old, hosts, inventory, catalog)
        if not isinstance(goal, Goal):
            there = self._whole_elsewhere(vm, old, hosts, inventory)
            return refuse(*blockers, *power_blockers(vm, self.power), *goal, *there)
        ask = Ask(vm, goal, hosts, self.numa, self.pin, self.power, inventory, catalog)
        against = (*self._other_devices(vm, goal, old), *broken_groups(vm, goal))
        if not against and is_there(ask):
            return left_as_it_is(ask, blockers)
        return planned(ask, (*blockers, *power_blockers(vm, self.power), *against))

    def _check(self) -> None:
        kinds = [self.profile is not None, bool(self.device), self._is_dynamic, self.device_group is not None]
        if sum(kinds) != 1:
            raise UsageError(
                "attach needs exactly one of --profile, --device, --dynamic and --device-group",
                hint="attach different devices one after the other, with --add",
            )
        if self.count is not None and (self.count < 1 or self.device or self.device_group):
            raise UsageError(
                f"--count {self.count} means nothing here",
                hint="it is the number of vGPUs or dynamic devices, 1 or more",
            )

    @property
    def _is_dynamic(self) -> bool:
        return self.dynamic or self.label is not None or bool(self.device_type)

    def _goal(
        self, vm: Vm, old: tuple[GpuDevice, ...], hosts: tuple[Host, ...], inventory: Inventory, catalog: Catalog
    ) -> Answer:
        if self.device:
            addresses = [PciAddress.parse(text) for text in self.device]
            return device_goal(vm, addresses, hosts[0] if hosts else None, old)
        if self.device_group is not None:
            return group_goal(vm, self.device_group, hosts, old)
        if self._is_dynamic:
            return dynamic_goal(vm, self.device_type, self.label, self.count, hosts, old)
        assert self.profile is not None, "_check lets exactly one kind pass"
        try:
            profile = profile_meant(self.profile, vm, hosts[0] if hosts else None, inventory, catalog)
        except ProfileUnknown:
            untold = unread(vm, hosts, inventory)
            if not untold:
                raise
            return untold
        return vgpus(vm, profile, self.count, [device for device in old if signature(device) != f"vgpu {profile}"])

    def _whole_elsewhere(
        self, vm: Vm, old: tuple[GpuDevice, ...], hosts: tuple[Host, ...], inventory: Inventory
    ) -> tuple[Rejection, ...]:
        """The other hosts that have such devices, where only the VM's own was looked at."""
        own = inventory.host_of(vm)
        if not self._is_dynamic or own is None or hosts != (own,):
            return ()
        ask = (vm, self.device_type, self.label, self.count)
        found = [each for each in others_with_gpus(vm, inventory) if isinstance(dynamic_goal(*ask, (each,), old), Goal)]
        return (able_instead(vm, [each.name for each in found], own),) if found else ()

    def _other_devices(self, vm: Vm, goal: Goal, old: tuple[GpuDevice, ...]) -> tuple[Rejection, ...]:
        """Devices that are not asked for, and not said to stay or to give way."""
        if self.replace and not old and not goal.unchanged:
            return (Rejection(vm.name, f"has no {self.replace} to replace", hint=f"it has: {gpu_names(vm)}"),)
        others = () if self.add else other_gpus(goal)
        if not others:
            return ()
        names = ", ".join(dict.fromkeys(signature(device) for device in others))
        hint = f"--add keeps it beside the new one, --replace {option_of(others[0])} puts the new one in its place"
        return (Rejection(vm.name, f"has {names} already", hint=hint),)
