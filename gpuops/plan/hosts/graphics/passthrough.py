"""Plans `gpuops host passthrough on|off`: DirectPath I/O of GPUs and other devices, and their hardware labels.

`split_groups` warns if only some GPUs of an NVLink group are switched: the others no longer form a device group, whose
GPUs must all serve vGPUs of one VM (NVIDIA AI Enterprise docs, device groups). A host reports which groups it offers,
but not which GPUs are in them.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated, ClassVar, TypeGuard

from gpuops.errors import UsageError
from gpuops.model.devices.catalog import Board, Catalog
from gpuops.model.devices.gpu import PciAddress, PhysicalGpu
from gpuops.model.devices.other_device import OtherDevice
from gpuops.model.vcenter.host import Host
from gpuops.model.vcenter.host_settings import HostSettings, PassthroughState
from gpuops.model.vcenter.inventory import Inventory
from gpuops.model.vcenter.vm import DirectPathDevice, DynamicDevice, GpuDevice
from gpuops.plan.core.command_line import ClusterName, HostPattern, Names, Option, called, command
from gpuops.plan.core.plan import Plan, Rejection, refuse
from gpuops.plan.core.scope import Scope
from gpuops.plan.core.steps import (
    ConfigureModes,
    ConfigurePassthrough,
    GpuDifference,
    HostStep,
    ModeChange,
    PassthroughChange,
)
from gpuops.plan.hosts.graphics.device_modes import mode_back, mode_changes, not_offered, whole_mode, with_reserved
from gpuops.plan.hosts.host_plan import HostPart, combine_parts, hosts_meant, kept_as_they_are
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
        str | None, Option("Its hardware label, by which VMs ask for it; empty: none any more.", "LABEL", Names.LABELS)
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
        parts = [self._of_host(host, addresses, inventory, catalog) for host in hosts]
        return with_reserved(combine_parts(parts, "passthrough"), inventory, catalog)

    def _hosts(self, inventory: Inventory) -> tuple[Host, ...]:
        # A host without GPUs may have the other devices that the request names.
        return hosts_meant(self._verb, self.host, self.cluster, inventory, every=bool(self.device))

    @property
    def _verb(self) -> str:
        return f"host passthrough {'on' if self.on else 'off'}"

    def _of_host(
        self, host: Host, addresses: tuple[PciAddress, ...], inventory: Inventory, catalog: Catalog
    ) -> HostPart:
        settings = host.settings or HostSettings()
        if host.connected is not True:
            return HostPart(host.name, (Rejection(host.name, "is not connected"),))
        if settings.passthrough is None:
            why = "; ".join(settings.unread) or "the host does not tell"
            return HostPart(host.name, (Rejection(host.name, f"its passthrough devices cannot be read: {why}"),))
        states = {state.address: state for state in settings.passthrough}
        missing = tuple(self._missing(host, addresses, states))
        if missing:
            return HostPart(host.name, missing)
        changes = {address: change for address in addresses if (change := self._change(states[address])) is not None}
        if not changes:
            existing_states = [states[address] for address in addresses]
            return HostPart(
                host.name, because=(self._already(host, existing_states),), due=self._due(host, existing_states)
            )
        rejections = (*self._labels(host, settings), *self._against(host, changes, states, inventory))
        if rejections:
            return HostPart(host.name, rejections)
        modes = self._modes(settings, changes, states)
        if unfit := tuple(not_offered(host, settings, modes or ())):
            return HostPart(host.name, unfit)
        at_once = settings.rebinds_without_reboot is True
        switched = any(states[address].active != change.enabled for address, change in changes.items())
        return HostPart(
            host.name,
            step=_step(host, changes, states, modes),
            reboots=switched and (modes is not None or not at_once),
            warnings=(
                *self._warnings(host, changes, states, inventory),
                *split_groups(host, addresses, on=self.on, catalog=catalog),
            ),
        )

    def _modes(
        self,
        settings: HostSettings,
        changes: dict[PciAddress, PassthroughChange],
        states: dict[PciAddress, PassthroughState],
    ) -> tuple[ModeChange, ...] | None:
        """Return the change as modes; None if it is made with the call of 8.x, for example because only a label
        changes."""
        switched = [address for address, change in changes.items() if states[address].enabled != change.enabled]
        requested_modes = {
            address: whole_mode(states[address]) if self.on else mode_back(states[address], settings)
            for address in switched
        }
        return mode_changes(settings, requested_modes)

    def _missing(
        self, host: Host, addresses: Iterable[PciAddress], states: Mapping[PciAddress, PassthroughState]
    ) -> Iterator[Rejection]:
        """Yield a refusal for each address at which the host has no GPU (`gpu`) or no other device (`device`)."""
        other_addresses = {PciAddress.parse(text) for text in self.device}
        for address in addresses:
            existing_device = host.device(address)
            if address in other_addresses:
                if isinstance(existing_device, PhysicalGpu):
                    name = f"at {address} is a GPU ({existing_device.name})"
                    yield Rejection(host.name, name, hint=f"name it as one: --gpu {address}")
                elif existing_device is None or address not in states:
                    listed = ", ".join(f"{device.address} {device.name}" for device in host.others) or "none"
                    rule = f"has no device {address} that could be passed through (it has: {listed})"
                    yield Rejection(host.name, rule)
            elif isinstance(existing_device, OtherDevice):
                hint = f"name it as another device: --device {address}"
                yield Rejection(
                    host.name,
                    f"has no GPU {address}: there is another device ({existing_device.kind}, {existing_device.name})",
                    hint=hint,
                )
            elif existing_device is None or address not in states:
                yield Rejection(host.name, f"has no GPU {address}")

    def _change(self, state: PassthroughState) -> PassthroughChange | None:
        """Return the change of a device; None if it is already as requested."""
        if state.enabled == self.on and self.label in (None, state.label or ""):
            return None
        return PassthroughChange(state.address, self.on, self.label)

    def _already(self, host: Host, states: list[PassthroughState]) -> str:
        pending = "; a reboot is pending" if any(state.enabled != state.active for state in states) else ""
        names = ", ".join(str(state.address) for state in states)
        return f"DirectPath I/O of {names} is {'on' if self.on else 'off'} on {host.name} already{pending}"

    def _due(self, host: Host, states: list[PassthroughState]) -> ConfigurePassthrough | None:
        waiting = tuple(PassthroughChange(state.address, self.on) for state in states if state.active != self.on)
        return ConfigurePassthrough(host.ref, waiting) if waiting else None

    def _labels(self, host: Host, settings: HostSettings) -> Iterator[Rejection]:
        if self.label is not None and settings.takes_labels is not True:
            yield Rejection(host.name, "takes no hardware labels (vSphere API 7.0.2, assignHwPciConfigSupported)")

    def _against(
        self,
        host: Host,
        changes: dict[PciAddress, PassthroughChange],
        states: dict[PciAddress, PassthroughState],
        inventory: Inventory,
    ) -> Iterator[Rejection]:
        switched = [address for address, change in changes.items() if states[address].enabled != change.enabled]
        if not switched:
            return  # only labels change: running VMs do not notice
        if self.on:
            yield from kept_as_they_are(host, inventory)
        for address in switched:
            device = host.device(address)
            if device is not None:
                yield from _in_use(host, device, states[address], inventory)
            if isinstance(device, OtherDevice) and self.on:
                yield from _carries(host, device)
            if self.on and not states[address].capable:
                yield Rejection(f"{host.name} {address}", "cannot be passed through (PciPassthruInfo.passthruCapable)")
            yield from _not_whole(host, states[address], states, set(changes))
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
            gpu, label = host.device(address), states[address].label
            relabelled = label is not None and change.label is not None and change.label != label
            if gpu is None or not (relabelled or not self.on):
                continue
            for vm in inventory.vms_on(host):
                taking = [device for device in vm.devices or () if _may_take(device, gpu)]
                if taking and not self.on:
                    noun = _noun(gpu)
                    yield f"{vm.name} takes any {noun} like {host.name} {address}: there is one fewer for it"
                elif any(device.label == label for device in taking):
                    noun = f"{_noun(gpu)}s"
                    yield f"{vm.name} asks for {noun} labelled {label}: {host.name} {address} loses that label"


def _noun(device: PhysicalGpu | OtherDevice) -> str:
    return "GPU" if isinstance(device, PhysicalGpu) else "device"


def _carries(host: Host, device: OtherDevice) -> Iterator[Rejection]:
    """Yield the uses of a device by its host, which would lose its uplink or disks (vSphere docs, DirectPath I/O)."""
    subject = f"{host.name} {device.address}"
    if device.carries is None and not device.kind.made_for_vms:
        yield Rejection(subject, f"what the host has this {device.kind} for cannot be read")
    for use in device.carries or ():
        hint = "take that from it first, or choose another device"
        yield Rejection(subject, f"is in the host's own use: {use}", hint=hint)


def _in_use(
    host: Host, gpu: PhysicalGpu | OtherDevice, state: PassthroughState, inventory: Inventory
) -> Iterator[Rejection]:
    """Refuse a device that a VM uses (vSphere API, HostConfigFault of UpdatePassthruConfig)."""
    subject = f"{host.name} {gpu.address}"
    if isinstance(gpu, OtherDevice):
        holder = holders(host, inventory).get(gpu.address)
        refs = set() if holder is None else {holder}
    else:
        refs = {binding.vm for binding in host.bindings if binding.address == gpu.address} | set(gpu.vms or ())
    names = sorted(inventory.vms[ref].name if ref in inventory.vms else ref for ref in refs)
    if names:
        yield Rejection(subject, f"is in use by {', '.join(names)}", hint="stop or move them first")
    elif isinstance(gpu, PhysicalGpu) and gpu.vms is None and not state.active:
        yield Rejection(subject, "which VMs run on it cannot be read")


def _not_whole(
    host: Host, state: PassthroughState, states: dict[PciAddress, PassthroughState], named: set[PciAddress]
) -> Iterator[Rejection]:
    """Refuse if devices that can only be switched together are not all named (vSphere API, PciPassthruInfo,
    dependentDevice)."""
    dependents = [
        other_state.address
        for other_state in states.values()
        if other_state.depends_on == state.depends_on is not None
        and other_state.capable
        and other_state.address not in named
    ]
    unswitched = [address for address in dependents if states[address].enabled == state.enabled]
    if unswitched:
        hint = " ".join(f"--gpu {address}" for address in unswitched)
        rule = "can only be switched together with its dependent devices"
        yield Rejection(f"{host.name} {state.address}", rule, hint=f"add {hint}")


def _assigned_to_vms(host: Host, addresses: list[PciAddress], inventory: Inventory) -> Iterator[Rejection]:
    """Refuse if a VM has one of these devices by its address: the VM could no longer start."""
    for vm in sorted(inventory.vms_on(host), key=lambda vm: vm.name):
        if vm.devices is None:
            yield Rejection(host.name, f"the devices of {vm.name} cannot be read: one of these may be among them")
        for device in vm.devices or ():
            if isinstance(device, DirectPathDevice) and device.address in addresses:
                detach_command = command("detach", vm=called(vm), device=str(device.address))
                hint = f"{detach_command} takes it from the VM"
                yield Rejection(f"{host.name} {device.address}", f"belongs to {vm.name} (DirectPath I/O)", hint=hint)


def _may_take(device: GpuDevice, gpu: PhysicalGpu | OtherDevice) -> TypeGuard[DynamicDevice]:
    label = gpu.passthrough.label if gpu.passthrough else None
    return (
        isinstance(device, DynamicDevice)
        and (gpu.vendor_id, gpu.device_id) in device.allowed
        and device.label in (None, label)
    )


def _step(
    host: Host,
    changes: dict[PciAddress, PassthroughChange],
    states: dict[PciAddress, PassthroughState],
    modes: tuple[ModeChange, ...] | None,
) -> ConfigurePassthrough | ConfigureModes:
    differences = tuple(_difference(states[address], change) for address, change in changes.items())
    if modes is None:
        return ConfigurePassthrough(host.ref, tuple(changes.values()), differences)
    labels = tuple(change for change in changes.values() if change.label is not None)
    return ConfigureModes(host.ref, modes, labels, differences)


def _difference(state: PassthroughState, change: PassthroughChange) -> GpuDifference:
    label = state.label if change.label is None else change.label or None
    return GpuDifference(state.address, _words(state.enabled, state.label), _words(change.enabled, label))


def _words(enabled: bool, label: str | None) -> str:
    return ("DirectPath I/O" if enabled else "host") + (f", label {label}" if label else "")


def split_groups(host: Host, named: Collection[PciAddress], *, on: bool, catalog: Catalog) -> Iterator[str]:
    """Yield a warning for each model with NVLink of which only some GPUs are switched."""
    groups = (host.settings or HostSettings()).device_groups
    boards = {gpu.address: catalog.board_by_pci(gpu.vendor_id, gpu.device_id, gpu.subsystem_id) for gpu in host.gpus}
    for board in dict.fromkeys(board for address in named if (board := boards.get(address)) is not None):
        behind = [
            str(address)
            for address, other_board in boards.items()
            if other_board is board and address not in named and _is_passed_through(host, address) is not on
        ]
        if not behind or not _may_be_linked(board):
            continue
        offered = [
            group.name for group in groups or () if _offers_any(board, {member.profile for member in group.members})
        ]
        if offered:
            yield (
                f"{host.name} offers {', '.join(offered)}: a GPU without its NVLink peers makes no such group, and "
                f"{', '.join(behind)} would stay behind; name all GPUs of a group, or none"
            )
        elif groups is None or not on:
            yield (
                f"{host.name}: whether NVLink joins {', '.join(behind)}, which would stay behind, to these GPUs is "
                "not told; name all GPUs of a group, or none"
            )


def _may_be_linked(board: Board) -> bool:
    return bool(board.nvlink_profiles or board.nvswitch_profiles)


def _offers_any(board: Board, profiles: Collection[str | None]) -> bool:
    return any(profile.name in profiles for profile in board.profiles)


def _is_passed_through(host: Host, address: PciAddress) -> bool | None:
    """Whether the GPU is in DirectPath I/O, now or after the next boot; None = unknown."""
    states = {state.address: state.enabled for state in (host.settings or HostSettings()).passthrough or ()}
    return states.get(address)
