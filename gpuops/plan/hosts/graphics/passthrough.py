"""Plans `gpuops host passthrough on|off`: DirectPath I/O of GPUs and other devices, and their hardware labels.

`warn_of_split_groups` warns if only some GPUs of an NVLink group are switched: the others no longer form a device
group, whose GPUs must all serve vGPUs of one VM (NVIDIA AI Enterprise docs, device groups). A host reports which
groups it offers, but not which GPUs are in them.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar

from gpuops.errors import UsageError
from gpuops.model.devices.catalog import Catalog
from gpuops.model.devices.gpu import PciAddress, PhysicalGpu
from gpuops.model.devices.other_device import OtherDevice
from gpuops.model.vcenter.host import Host
from gpuops.model.vcenter.host_settings import HostSettings, PassthroughState
from gpuops.model.vcenter.inventory import Inventory
from gpuops.model.vcenter.vm import DirectPathDevice, DynamicDevice
from gpuops.plan.core.command_line import ClusterName, HostPattern, Names, Option, called, command
from gpuops.plan.core.plan import Plan, refuse
from gpuops.plan.core.rejection import READ_HOST, READ_HOST_AND_VMS, READ_VM, RECONNECT, TEST_LOGIN, Rejection
from gpuops.plan.core.scope import Scope
from gpuops.plan.core.steps import (
    ConfigureModes,
    ConfigurePassthrough,
    GpuDifference,
    HostStep,
    ModeChange,
    PassthroughChange,
)
from gpuops.plan.hosts.graphics.device_mode_changes import (
    directpath_mode,
    mode_changes,
    mode_for_host,
    refuse_unoffered_modes,
    warn_of_reservations,
)
from gpuops.plan.hosts.host_plan import HostPart, combine_parts, select_hosts, vms_forbidding_change
from gpuops.plan.placement.gpu_filters import holders


@dataclass(frozen=True, slots=True)
class SetPassthrough:
    """A request to give GPUs and other devices to VMs by DirectPath I/O, or back to their hosts."""

    run_kind: ClassVar[str] = "setpassthrough"

    on: bool
    gpu: Annotated[
        tuple[str, ...], Option("A GPU of each host: 0000:5e:00.0. May be repeated.", "PCI-ADDRESS", Names.DEVICES)
    ] = ()
    label: Annotated[
        str | None, Option("Its hardware label, by which VMs request it; empty: remove it.", "LABEL", Names.LABELS)
    ] = None
    """None leaves it as it is."""
    host: HostPattern = None
    cluster: ClusterName = None
    device: Annotated[
        tuple[str, ...],
        Option(
            "Another PCI device of each host: an AMD GPU, an FPGA, a NIC. May be repeated.",
            "PCI-ADDRESS",
            Names.DEVICES,
        ),
    ] = ()

    def hosts(self, inventory: Inventory) -> Collection[str]:
        """Refs of the selected hosts. Raises UsageError, HostNotFound."""
        return tuple(host.ref for host in self._hosts(inventory))

    def plan(self, inventory: Inventory, catalog: Catalog) -> Plan[HostStep]:
        """Return the change of each host's passthrough devices. Raises UsageError."""
        if not self.gpu and not self.device:
            hint = "gpuops inventory --hosts shows the addresses of GPUs"
            raise UsageError(f"{self._verb} needs --gpu or --device", hint=hint)
        addresses = tuple(dict.fromkeys(PciAddress.parse(text) for text in (*self.gpu, *self.device)))
        hosts = self._hosts(inventory)
        if not hosts:
            return refuse(Scope(self.cluster, self.host).nowhere("passthrough", inventory))
        parts = [self._plan_host(host, addresses, inventory, catalog) for host in hosts]
        return warn_of_reservations(combine_parts(parts, "passthrough"), inventory, catalog)

    def _hosts(self, inventory: Inventory) -> tuple[Host, ...]:
        # A host without GPUs may have the other devices that the request names.
        return select_hosts(self._verb, self.host, self.cluster, inventory, include_all=bool(self.device))

    @property
    def _verb(self) -> str:
        return f"host passthrough {'on' if self.on else 'off'}"

    def _plan_host(
        self, host: Host, addresses: tuple[PciAddress, ...], inventory: Inventory, catalog: Catalog
    ) -> HostPart:
        """Return the part of the plan for these devices of one host."""
        settings = host.settings or HostSettings()
        if host.connected is not True:
            return HostPart(host.name, (Rejection(host.name, "is not connected", hint=RECONNECT),))
        if settings.passthrough is None:
            why = "; ".join(settings.unread) or "the host does not report them"
            rule = f"its passthrough devices cannot be read: {why}"
            return HostPart(host.name, (Rejection(host.name, rule, hint=TEST_LOGIN),))
        states = {state.address: state for state in settings.passthrough}
        missing = tuple(self._missing_devices(host, addresses, states))
        if missing:
            return HostPart(host.name, missing)
        # 1. What changes. A device that is configured as requested may still wait for a reboot.
        changes: dict[PciAddress, PassthroughChange] = {}
        for address in addresses:
            if states[address].enabled != self.on or self.label not in (None, states[address].label or ""):
                changes[address] = PassthroughChange(address, self.on, self.label)
        if not changes:
            return self._unchanged(host, [states[address] for address in addresses])
        # 2. Why it must not change.
        rejections = list(self._change_rejections(host, changes, states, inventory))
        if self.label is not None and settings.takes_labels is not True:
            no_labels = "takes no hardware labels (vSphere API 7.0.2, assignHwPciConfigSupported)"
            rejections.insert(0, Rejection(host.name, no_labels, hint="remove --label"))
        if rejections:
            return HostPart(host.name, tuple(rejections))
        # 3. How: vSphere 9.1 sets modes of devices; before, and for labels alone, the call of 8.x is used,
        # and `modes` is None.
        switched = [states[address] for address, change in changes.items() if states[address].enabled != change.enabled]
        # On: the mode for DirectPath I/O; off: the mode that gives the device back to the host.
        new_modes = {
            state.address: directpath_mode(state) if self.on else mode_for_host(state, settings) for state in switched
        }
        modes = mode_changes(settings, new_modes)
        if unoffered := tuple(refuse_unoffered_modes(host, settings, modes or ())):
            return HostPart(host.name, unoffered)
        takes_effect_later = any(states[address].active != change.enabled for address, change in changes.items())
        return HostPart(
            host.name,
            step=_step(host, changes, states, modes),
            reboots=takes_effect_later and (modes is not None or settings.rebinds_without_reboot is not True),
            warnings=(
                *self._warnings(host, changes, states, inventory),
                *warn_of_split_groups(host, addresses, on=self.on, catalog=catalog),
            ),
        )

    def _unchanged(self, host: Host, states: Sequence[PassthroughState]) -> HostPart:
        """Return the part of a host whose devices are configured as requested, with those that wait for a reboot."""
        pending = "; a reboot is pending" if any(state.enabled != state.active for state in states) else ""
        names = ", ".join(str(state.address) for state in states)
        text = f"DirectPath I/O of {names} is {'on' if self.on else 'off'} on {host.name} already{pending}"
        waiting = tuple(PassthroughChange(state.address, self.on) for state in states if state.active != self.on)
        due = ConfigurePassthrough(host.ref, waiting) if waiting else None
        return HostPart(host.name, because=(text,), due=due)

    def _missing_devices(
        self, host: Host, addresses: Iterable[PciAddress], states: Mapping[PciAddress, PassthroughState]
    ) -> Iterator[Rejection]:
        """Yield a refusal for each address at which the host has no GPU (`gpu`) or no other device (`device`)."""
        other_addresses = {PciAddress.parse(text) for text in self.device}
        for address in addresses:
            existing_device = host.device(address)
            if address in other_addresses:
                if isinstance(existing_device, PhysicalGpu):
                    name = f"has a GPU at {address} ({existing_device.name})"
                    yield Rejection(host.name, name, hint=f"use --gpu {address} for it")
                elif existing_device is None or address not in states:
                    listed = ", ".join(f"{device.address} {device.name}" for device in host.others) or "none"
                    rule = f"has no device {address} that could be passed through (it has: {listed})"
                    yield Rejection(host.name, rule)
            elif isinstance(existing_device, OtherDevice):
                hint = f"use --device {address} for it"
                yield Rejection(
                    host.name,
                    f"has no GPU {address}: there is another device ({existing_device.kind}, {existing_device.name})",
                    hint=hint,
                )
            elif existing_device is None or address not in states:
                yield Rejection(host.name, f"has no GPU {address}")

    def _change_rejections(
        self,
        host: Host,
        changes: dict[PciAddress, PassthroughChange],
        states: dict[PciAddress, PassthroughState],
        inventory: Inventory,
    ) -> Iterator[Rejection]:
        """Yield the reasons not to switch the devices of `changes` whose mode changes."""
        switched = [address for address, change in changes.items() if states[address].enabled != change.enabled]
        if not switched:
            return  # only labels change: running VMs do not notice
        if self.on:
            yield from vms_forbidding_change(host, inventory)
        for address in switched:
            device = host.device(address)
            if device is not None:
                yield from _vm_use_rejections(host, device, states[address], inventory)
            if isinstance(device, OtherDevice) and self.on:
                yield from _host_use_rejections(host, device)
            if self.on and not states[address].capable:
                yield Rejection(f"{host.name} {address}", "cannot be passed through (PciPassthruInfo.passthruCapable)")
            yield from _dependent_rejections(host, states[address], states, set(changes))
        if not self.on:
            yield from _assigned_to_vms(host, switched, inventory)

    def _warnings(
        self,
        host: Host,
        changes: dict[PciAddress, PassthroughChange],
        states: dict[PciAddress, PassthroughState],
        inventory: Inventory,
    ) -> Iterator[str]:
        """Yield a warning for each VM with a dynamic device that could have taken this one, and then cannot."""
        for address, change in changes.items():
            host_device, label = host.device(address), states[address].label
            loses_label = label is not None and change.label is not None and change.label != label
            if host_device is None or (self.on and not loses_label):
                continue
            own_label = host_device.passthrough.label if host_device.passthrough else None
            ids = (host_device.vendor_id, host_device.device_id)
            for vm in inventory.vms_on(host):
                dynamic = [device for device in vm.devices or () if isinstance(device, DynamicDevice)]
                same_type = [device for device in dynamic if ids in device.allowed]
                fitting = [device for device in same_type if device.label in (None, own_label)]
                noun = _noun(host_device)
                if fitting and not self.on:
                    yield f"{vm.name} takes any {noun} like {host.name} {address}: there is one fewer for it"
                elif any(device.label == label for device in fitting):
                    yield f"{vm.name} asks for {noun}s labelled {label}: {host.name} {address} loses that label"


def _noun(device: PhysicalGpu | OtherDevice) -> str:
    return "GPU" if isinstance(device, PhysicalGpu) else "device"


def _host_use_rejections(host: Host, device: OtherDevice) -> Iterator[Rejection]:
    """Yield the uses of a device by its host, which would lose its uplink or disks (vSphere docs, DirectPath I/O)."""
    subject = f"{host.name} {device.address}"
    if device.carries is None and not device.kind.made_for_vms:
        yield Rejection(subject, f"what the host has this {device.kind} for cannot be read", hint=READ_HOST)
    for use in device.carries or ():
        hint = "end this use first, or choose another device"
        yield Rejection(subject, f"is in the host's own use: {use}", hint=hint)


def _vm_use_rejections(
    host: Host, device: PhysicalGpu | OtherDevice, state: PassthroughState, inventory: Inventory
) -> Iterator[Rejection]:
    """Refuse a device that a VM uses (vSphere API, HostConfigFault of UpdatePassthruConfig)."""
    subject = f"{host.name} {device.address}"
    if isinstance(device, OtherDevice):
        holder = holders(host, inventory).get(device.address)
        refs = set() if holder is None else {holder}
    else:
        refs = {binding.vm for binding in host.bindings if binding.address == device.address} | set(device.vms or ())
    names = sorted(inventory.vms[ref].name if ref in inventory.vms else ref for ref in refs)
    if names:
        yield Rejection(subject, f"is in use by {', '.join(names)}", hint="stop or move them first")
    elif isinstance(device, PhysicalGpu) and device.vms is None and not state.active:  # if active, no vGPU runs on it
        yield Rejection(subject, "which VMs run on it cannot be read", hint=READ_HOST_AND_VMS)


def _dependent_rejections(
    host: Host, state: PassthroughState, states: dict[PciAddress, PassthroughState], named: set[PciAddress]
) -> Iterator[Rejection]:
    """Refuse to switch a device without the devices that vCenter switches only together with it (vSphere API,
    PciPassthruInfo, dependentDevice). Those that are in the other mode already need no switch."""
    unswitched = []
    for other in states.values():
        depends_on_same = state.depends_on is not None and other.depends_on == state.depends_on
        if depends_on_same and other.capable and other.address not in named and other.enabled == state.enabled:
            unswitched.append(other.address)
    if unswitched:
        # `--gpu` refuses other devices, and `--device` refuses GPUs
        options = {
            address: "gpu" if isinstance(host.device(address), PhysicalGpu) else "device" for address in unswitched
        }
        hint = " ".join(f"--{option} {address}" for address, option in options.items())
        rule = "can only be switched together with its dependent devices"
        yield Rejection(f"{host.name} {state.address}", rule, hint=f"add {hint}")


def _assigned_to_vms(host: Host, addresses: list[PciAddress], inventory: Inventory) -> Iterator[Rejection]:
    """Refuse if a VM has one of these devices by its address: the VM could no longer start."""
    for vm in sorted(inventory.vms_on(host), key=lambda vm: vm.name):
        if vm.devices is None:
            rule = f"the devices of {vm.name} cannot be read: one of these may be among them"
            yield Rejection(host.name, rule, hint=READ_VM)
        for device in vm.devices or ():
            if isinstance(device, DirectPathDevice) and device.address in addresses:
                detach_command = command("detach", vm=called(vm), device=str(device.address))
                hint = f"{detach_command} takes it from the VM"
                yield Rejection(f"{host.name} {device.address}", f"belongs to {vm.name} (DirectPath I/O)", hint=hint)


def _step(
    host: Host,
    changes: Mapping[PciAddress, PassthroughChange],
    states: Mapping[PciAddress, PassthroughState],
    modes: tuple[ModeChange, ...] | None,
) -> ConfigurePassthrough | ConfigureModes:
    """Return the step that makes these changes: by modes, or without `modes` by the call of 8.x."""
    differences = []
    for address, change in changes.items():
        state = states[address]
        new_label = state.label if change.label is None else change.label or None
        before, after = _setting_text(state.enabled, state.label), _setting_text(change.enabled, new_label)
        differences.append(GpuDifference(address, before, after))
    if modes is None:
        return ConfigurePassthrough(host.ref, tuple(changes.values()), tuple(differences))
    labels = tuple(change for change in changes.values() if change.label is not None)
    return ConfigureModes(host.ref, modes, labels, tuple(differences))


def _setting_text(enabled: bool, label: str | None) -> str:
    return ("DirectPath I/O" if enabled else "host") + (f", label {label}" if label else "")


def warn_of_split_groups(host: Host, named: Collection[PciAddress], *, on: bool, catalog: Catalog) -> Iterator[str]:
    """Yield a warning for each model with NVLink of which only some GPUs are switched."""
    settings = host.settings or HostSettings()
    is_enabled = {state.address: state.enabled for state in settings.passthrough or ()}
    boards = {gpu.address: catalog.board_by_pci(gpu.vendor_id, gpu.device_id, gpu.subsystem_id) for gpu in host.gpus}
    for board in dict.fromkeys(board for address in named if (board := boards.get(address)) is not None):
        same_model = [address for address, other_board in boards.items() if other_board is board]
        left_behind = [
            str(address) for address in same_model if address not in named and is_enabled.get(address) is not on
        ]
        if not left_behind or not (board.nvlink_profiles or board.nvswitch_profiles):
            continue
        profiles = {profile.name for profile in board.profiles}
        offered = [
            group.name
            for group in settings.device_groups or ()
            if any(member.profile in profiles for member in group.members)
        ]
        if offered:
            yield (
                f"{host.name} offers {', '.join(offered)}: a GPU without its NVLink peers forms no such group, and "
                f"{', '.join(left_behind)} would not be switched; name all GPUs of a group, or none"
            )
        elif settings.device_groups is None or not on:
            yield (
                f"{host.name}: it is unknown whether NVLink joins {', '.join(left_behind)}, not switched here, to "
                "these GPUs; name all GPUs of a group, or none"
            )
