"""The claims of suspended VMs, the order in which they resume, and the steps that suspend and resume them.

A suspended VM resumes on its host and then needs its GPUs and its memory there. vCenter reserves nothing for it: the
first VM that starts gets its slots (vSphere API, VirtualMachine.SuspendVM_Task and PowerOnVM_Task; a suspended VM holds
no device). Without claims that would show only when it cannot resume. (assumption: suspended-vm-host,
assumption: ha-suspended-vms, assumption: suspend-frees-slot)

Order decides whether desktops fit. A same-size GPU takes the profile of the first VM on it, and the host may spread VMs
over empty GPUs. So one VM of each profile resumes first for every GPU that the profile needs. When each of these GPUs
has one, the other VMs follow. On a mixed-size or MIG GPU a large profile needs a start offset that small ones could
occupy, so the largest resume first.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from enum import StrEnum
from typing import Final

from gpuops.errors import UsageError
from gpuops.model.devices.catalog import Catalog
from gpuops.model.devices.gpu import PciAddress, VgpuMode
from gpuops.model.nights.night_record import Role
from gpuops.model.vcenter.host import Host
from gpuops.model.vcenter.inventory import Inventory
from gpuops.model.vcenter.vm import Awaited, PowerState, Vm, pins_of
from gpuops.model.workloads.workload import moment
from gpuops.plan.core.rejection import Rejection
from gpuops.plan.core.steps import PowerOnVm, ResumeVm, ShutDownGuest, SuspendVm
from gpuops.plan.placement.host_filters import unreserved_mhz, unreserved_mib
from gpuops.plan.placement.project import project, take
from gpuops.plan.placement.seating import Room, reduced_to_host, seat
from gpuops.plan.placement.vm_demand import demands_of

RETURN_ATTRIBUTE: Final = "gpuops.return"
"""Custom attribute of a suspended VM: the moment when it must be back."""


class SuspendedPolicy(StrEnum):
    """What happens to the GPUs that suspended VMs had."""

    CLAIM = "claim"
    """They are kept for these VMs. A plan gives them only to VMs that end before the suspended VMs come back."""
    IGNORE = "ignore"
    """They are free: use it for VMs that end before the suspended VMs must be back."""


@dataclass(frozen=True, slots=True)
class Claim:
    """A suspended VM and the GPUs it is expected on when it resumes; `lost` = why it could not resume even now."""

    vm: Vm
    host: Host
    gpus: tuple[PciAddress, ...] = ()
    lost: tuple[Rejection, ...] = ()
    doubts: tuple[str, ...] = ()
    """Why it may find no GPU although one seems free: vCenter does not show where the vGPUs on it start."""


@dataclass(frozen=True, slots=True)
class Return:
    """A suspended VM that must be back only after the requested VMs have ended."""

    vm: Vm
    at: datetime


def later_returns(inventory: Inventory, until: datetime | None) -> tuple[tuple[Return, ...], tuple[str, ...]]:
    """Return the VMs that must be back at `until` or later, by name, and a line for each VM whose attribute holds no
    valid moment."""
    later: list[Return] = []
    unclear: list[str] = []
    for vm in sorted(inventory.vms.values(), key=lambda vm: (vm.name, vm.ref)):
        text = vm.attributes.get(RETURN_ATTRIBUTE, "")
        if until is None or vm.power is not PowerState.SUSPENDED or not vm.devices or not text:
            continue
        try:
            at = moment(text)
        except UsageError as error:
            unclear.append(f"{vm.name} (suspended) keeps its GPUs: {RETURN_ATTRIBUTE}: {error.message}")
            continue
        if at >= until:
            later.append(Return(vm, at))
    return tuple(later), tuple(unclear)


def with_claims(
    inventory: Inventory, catalog: Catalog, without: Collection[str] = (), hosts: Collection[str] | None = None
) -> tuple[Inventory, tuple[Claim, ...]]:
    """Return the snapshot as if all suspended VMs that find their GPUs ran, and the claim of each, by host and name.

    Each VM is seated next to the earlier ones, and "(suspended)" is added to its name. VMs whose refs are in `without`
    claim nothing. `hosts`: only VMs on the hosts with these refs.
    """
    listed_vms = (
        inventory.vms.values() if hosts is None else [vm for ref in hosts for vm in inventory.vms_by_host.get(ref, ())]
    )
    suspended = [vm for vm in listed_vms if vm.power is PowerState.SUSPENDED and vm.devices and vm.ref not in without]
    snapshot, claims_so_far = inventory, []
    for vm in sorted(suspended, key=lambda vm: (vm.host or "", vm.name, vm.ref)):
        host = snapshot.hosts.get(vm.host or "")
        if host is None:
            continue
        claim = _claim(vm, host, snapshot, catalog)
        claims_so_far.append(claim)
        if not claim.lost:
            returned_vm = replace(vm, name=f"{vm.name} (suspended)", power=PowerState.ON, awaited=Awaited.RETURN)
            snapshot = take(returned_vm, snapshot, catalog)
    return snapshot, tuple(claims_so_far)


def claims(
    inventory: Inventory, catalog: Catalog, hosts: Collection[str], only: Collection[str] | None = None
) -> tuple[Claim, ...]:
    """Return the claims on these hosts, and only those of the VMs in `only` if it is given (all are refs)."""
    vms_on_hosts = (vm for ref in hosts for vm in inventory.vms_by_host.get(ref, ()))
    left_out = [] if only is None else [vm.ref for vm in vms_on_hosts if vm.ref not in only]
    return with_claims(inventory, catalog, left_out, hosts)[1]


def _claim(vm: Vm, host: Host, inventory: Inventory, catalog: Catalog) -> Claim:
    """Return the GPUs that the suspended VM claims on this host, or why it cannot resume there (`lost`)."""
    free_mib = unreserved_mib(host, vm, inventory)
    needed_mib = vm.memory_reservation_mib or 0
    if free_mib is not None and needed_mib > free_mib:
        shortage = Rejection(host.name, f"memory for {vm.name} to come back", needed_mib, free_mib, "MiB")
        return Claim(vm, host, lost=(shortage,))
    free_mhz, needed_mhz = unreserved_mhz(host, vm, inventory), vm.cpu_reservation_mhz or 0
    if free_mhz is not None and needed_mhz > free_mhz:
        shortage = Rejection(host.name, f"CPU for {vm.name} to come back", needed_mhz, free_mhz, "MHz")
        return Claim(vm, host, lost=(shortage,))
    seating = seat(vm, demands_of(vm.devices or (), pins_of(vm)), host, inventory, catalog)
    if not seating.complete:
        return Claim(vm, host, lost=seating.rejections)
    return Claim(vm, host, tuple(sorted(set(seating.seats.values()))), doubts=seating.doubts)


def return_check(inventory: Inventory, catalog: Catalog, room: Room) -> Callable[[Sequence[Vm]], tuple[Rejection, ...]]:
    """Return a function that lists why suspended desktops could not resume on their hosts after the ML VMs stop."""

    def refusals_of(desktops: Sequence[Vm]) -> tuple[Rejection, ...]:
        by_host: dict[str | None, list[Vm]] = defaultdict(list)
        for vm in desktops:
            by_host[vm.host].append(vm)
        refusals_by_host = (refuse_stranded(vms, inventory, catalog, room) for vms in by_host.values())
        return tuple(refusal for refusals in refusals_by_host for refusal in refusals)

    return refusals_of


def refuse_stranded(desktops: Sequence[Vm], inventory: Inventory, catalog: Catalog, room: Room) -> list[Rejection]:
    """Return why these desktops, all of one host, could not be suspended and then resume there one after the other."""
    host = inventory.host_of(desktops[0])
    if host is None:
        return [Rejection(vm.name, "vCenter does not show its host") for vm in desktops]
    snapshot = reduced_to_host(host, inventory)
    for vm in desktops:
        snapshot = project(suspend_or_shut_down(vm), snapshot)
    refusals: list[Rejection] = []
    first_vms, later_vms = return_order(desktops, snapshot, catalog)
    for vm in (*first_vms, *later_vms):
        reasons = room.refusals(snapshot.vm(vm.ref), snapshot.hosts[host.ref], snapshot)
        refusals += reasons
        if not reasons:
            snapshot = project(resume_or_power_on(snapshot.vm(vm.ref)), snapshot, catalog)
    return refusals


def return_order(desktops: Sequence[Vm], inventory: Inventory, catalog: Catalog) -> tuple[list[Vm], list[Vm]]:
    """Return the VMs that claim a GPU each, and those that follow, both by host. `inventory` shows them suspended.

    Example: of seven desktops with A40-8Q on a host with two empty A40, two come first, so that each A40 takes the size
    8Q before a desktop of another size could claim it. The other five then fit on either.
    """
    by_host: dict[str | None, list[Vm]] = defaultdict(list)
    for vm in desktops:
        by_host[vm.host].append(vm)
    first_vms: list[Vm] = []
    later_vms: list[Vm] = []
    for ref in sorted(by_host, key=str):
        # Largest first: on a GPU with start offsets small vGPUs could block the few that a large one can have.
        vms = sorted(by_host[ref], key=lambda vm: (-size_mib(vm, catalog), vm.profiles, vm.name))
        to_claim = _gpus_to_claim(vms, inventory, catalog)
        for vm in vms:
            (first_vms if to_claim[vm.profiles] > 0 else later_vms).append(vm)
            to_claim[vm.profiles] -= 1
    return first_vms, later_vms


def _gpus_to_claim(vms: Sequence[Vm], inventory: Inventory, catalog: Catalog) -> Counter[tuple[str, ...]]:
    """Return how many GPUs each set of profiles still has to claim; on mixed-size and MIG hosts one for each VM.

    Example: five desktops with A40-8Q, of which six fit on a GPU, and three others that already run on one GPU. The
    eight need two GPUs, and one is claimed by those that run: one desktop resumes first, to claim the second GPU.
    """
    counts = Counter(vm.profiles for vm in vms)
    host = inventory.host_of(vms[0])
    if host is None or any(gpu.vgpu_mode in (VgpuMode.MIXED_SIZE, VgpuMode.MULTI_INSTANCE) for gpu in host.gpus):
        return counts
    # A GPU with a running VM of these profiles is already claimed: VMs that share it can resume later.
    running = {vm.ref: vm.profiles for vm in inventory.vms_on(host) if vm.power is PowerState.ON}
    running_counts = Counter(running.values())
    claimed: Counter[tuple[str, ...]] = Counter()
    for gpu in host.gpus:
        claimed.update({running[ref] for ref in gpu.vms or () if ref in running})
    gpus_to_claim: Counter[tuple[str, ...]] = Counter()
    for profiles, count in counts.items():
        known_profiles = [profile for name in profiles if (profile := catalog.profile(name)) is not None]
        vms_per_gpu = min((profile.max_per_gpu for profile in known_profiles), default=1)
        gpus_needed = -(-(count + running_counts[profiles]) // vms_per_gpu)
        gpus_to_claim[profiles] = gpus_needed - claimed[profiles]
    return gpus_to_claim


def size_mib(vm: Vm, catalog: Catalog) -> int:
    """Return the frame buffers of all its vGPUs in MiB, as far as the catalogue knows them."""
    known_profiles = [catalog.profile(name) for name in vm.profiles]
    return sum(profile.framebuffer_mib for profile in known_profiles if profile is not None)


GUEST_GRACE_S: Final = 300
"""How long a desktop's guest has to shut down; it is never powered off."""


def role_of(vm: Vm) -> Role:
    """Return how `rotate night` stops the desktop. A VM with a DirectPath device cannot be suspended (VMware vSphere 8
    documentation)."""
    return Role.SHUT_DOWN if vm.has_passthrough else Role.DESKTOP


def suspend_or_shut_down(vm: Vm) -> SuspendVm | ShutDownGuest:
    """Return the step that makes a running desktop give up its GPUs."""
    if role_of(vm) is Role.DESKTOP:
        return SuspendVm(vm.ref)
    return ShutDownGuest(vm.ref, GUEST_GRACE_S, then_off=False)


def resume_or_power_on(vm: Vm) -> ResumeVm | PowerOnVm:
    """Return the step that brings a desktop back on the host where it is registered now: vSphere HA or an admin may
    have moved it."""
    return ResumeVm(vm.ref, vm.host) if vm.power is PowerState.SUSPENDED else PowerOnVm(vm.ref, vm.host)
