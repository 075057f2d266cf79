"""Plans `gpuops host mig on|off`. Only the host's own nvidia-smi can switch MIG mode.

Sources: NVIDIA MIG User Guide (the mode changes by a reset of the idle GPU, or at the host's next boot); vSphere API
8.0.3, HostGraphicsInfo.vgpuMode: vCenter reports the mode and has no call to change it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import ClassVar, Final

from gpuops.errors import UsageError
from gpuops.model.devices.catalog import Catalog
from gpuops.model.devices.gpu import PciAddress
from gpuops.model.vcenter.host import Host
from gpuops.model.vcenter.host_settings import UNASKED, HostSettings, SmiState
from gpuops.model.vcenter.inventory import Inventory
from gpuops.plan.core.command_line import ClusterName, GpusOfHosts, HostPattern, command, hosts_called
from gpuops.plan.core.plan import Plan, refuse
from gpuops.plan.core.rejection import READ_HOST_AND_VMS, RECONNECT, Rejection
from gpuops.plan.core.scope import Scope
from gpuops.plan.core.steps import ConfigureMig, GpuDifference, HostStep
from gpuops.plan.hosts.host_plan import HostPart, combine_parts, select_hosts, vms_forbidding_change

_NO_MIG: Final = "has no MIG mode (NVIDIA MIG User Guide)"
NO_SHELL: Final = "only the host's own nvidia-smi switches MIG mode: vCenter has no call for it"


@dataclass(frozen=True, slots=True)
class SetMig:
    """A request to switch MIG mode of GPUs on or off."""

    run_kind: ClassVar[str] = "setmig"

    on: bool
    gpu: GpusOfHosts = ()
    """PCI addresses; empty = every GPU that has MIG."""
    host: HostPattern = None
    cluster: ClusterName = None

    def hosts(self, inventory: Inventory) -> Collection[str]:
        """Refs of the selected hosts. Raises UsageError, HostNotFound."""
        return tuple(host.ref for host in select_hosts(self._verb, self.host, self.cluster, inventory))

    def plan(self, inventory: Inventory, catalog: Catalog) -> Plan[HostStep]:
        """Return the switch on each host. Raises UsageError."""
        addresses = tuple(dict.fromkeys(PciAddress.parse(text) for text in self.gpu))
        hosts = select_hosts(self._verb, self.host, self.cluster, inventory)
        if not hosts:
            return refuse(Scope(self.cluster, self.host).nowhere("mig", inventory))
        if all((host.settings or HostSettings()).mig is None and not _unanswered_reason(host) for host in hosts):
            raise UsageError(NO_SHELL, hint="add --host-shell ssh, so that gpuops can call it (gpuops help mig)")
        return combine_parts([self._plan_host(host, addresses, inventory, catalog) for host in hosts], "mig")

    @property
    def _verb(self) -> str:
        return f"host mig {'on' if self.on else 'off'}"

    def _plan_host(
        self, host: Host, addresses: tuple[PciAddress, ...], inventory: Inventory, catalog: Catalog
    ) -> HostPart:
        """Return the part of the plan for one host: for these GPUs, or without `addresses` for all with MIG."""
        smi_states = (host.settings or HostSettings()).mig
        if host.connected is not True:
            return HostPart(host.name, (Rejection(host.name, "is not connected", hint=RECONNECT),))
        if smi_states is None:
            hint = "gpuops help mig lists what the host shell needs"
            reason = _unanswered_reason(host) or "its nvidia-smi was not called"
            return HostPart(host.name, (Rejection(host.name, f"MIG modes cannot be read: {reason}", hint=hint),))
        states = {state.address: state for state in smi_states}
        # 1. The named GPUs, or all with MIG. A GPU whose mode cannot be read is included, to be refused: it may be in
        # the other mode.
        selected = [states[address] for address in addresses if address in states]
        if not addresses:
            selected = [state for state in smi_states if state.current is not None]
            selected += [state for state in smi_states if state.unread and _may_have_mig(state, host, catalog)]
        changing = [state for state in selected if state.pending is not self.on]
        # 2. Why they must not change.
        rejections = [
            Rejection(host.name, f"has no GPU {address} (nvidia-smi)") for address in addresses if address not in states
        ]
        for state in changing:
            rejections += _switch_rejections(state, host, inventory, catalog)
        rejections += vms_forbidding_change(host, inventory) if changing else ()
        if rejections:
            return HostPart(host.name, tuple(rejections))
        # 3. What changes; or what was changed before and waits for a reboot.
        mode = "on" if self.on else "off"
        if not selected:
            return HostPart(host.name, because=(f"{host.name}: no GPU with MIG is selected",))
        if not changing:
            waiting = tuple(state.address for state in selected if state.current is not self.on)
            due = ConfigureMig(host.ref, waiting, self.on) if waiting else None
            pending = "; a reboot is pending" if due else ""
            return HostPart(host.name, because=(f"{host.name}: MIG mode is {mode} already{pending}",), due=due)
        words = {True: "MIG", False: "no MIG", None: "unknown"}
        differences = (GpuDifference(state.address, words[state.pending], words[self.on]) for state in changing)
        changed_addresses = tuple(state.address for state in changing)
        return HostPart(host.name, step=ConfigureMig(host.ref, changed_addresses, self.on, tuple(differences)))


def _may_have_mig(state: SmiState, host: Host, catalog: Catalog) -> bool:
    """Return whether the model of the GPU has MIG, or is not in the catalogue."""
    gpu = host.gpu(state.address)
    board = catalog.board_by_pci(gpu.vendor_id, gpu.device_id, gpu.subsystem_id) if gpu is not None else None
    return board is None or board.mig is not None


def _switch_rejections(state: SmiState, host: Host, inventory: Inventory, catalog: Catalog) -> Iterator[Rejection]:
    """Yield why the MIG mode of this GPU must not change."""
    subject, gpu = f"{host.name} {state.address}", host.gpu(state.address)
    board = catalog.board_by_pci(gpu.vendor_id, gpu.device_id, gpu.subsystem_id) if gpu is not None else None
    if board is not None and board.mig is None:
        yield Rejection(subject, _NO_MIG)
    elif state.unread:
        obstacle = state.health.vgpu_obstacle
        hint = "reboot the host" if obstacle else f"run nvidia-smi -q -i {state.address} on the host"
        yield Rejection(subject, f"its MIG mode cannot be read ({state.unread})", hint=hint)
    elif state.current is None:
        yield Rejection(subject, _NO_MIG)
    elif gpu is None or gpu.vms is None:
        yield Rejection(subject, "which VMs run on it cannot be read", hint=READ_HOST_AND_VMS)
    elif gpu.vms:
        names = ", ".join(sorted(inventory.vms[ref].name if ref in inventory.vms else ref for ref in gpu.vms))
        rule = f"MIG mode changes only while no VM is on the GPU; VMs on it: {names}"
        yield Rejection(subject, rule, hint="move or shut down these VMs first")
    elif gpu.passed_through:
        off_command = command("host passthrough off", gpu=str(state.address), host=hosts_called(host.name))
        rule = "is in DirectPath I/O, so the host's driver cannot switch its mode"
        yield Rejection(subject, rule, hint=f"{off_command} gives it back to the host")


def _unanswered_reason(host: Host) -> str:
    """Return why the host's nvidia-smi did not answer; empty if it was not called."""
    unread = (host.settings or HostSettings()).unread
    return "; ".join(text.removeprefix(UNASKED) for text in unread if text.startswith(UNASKED))
