"""Which VMs `gpuops size` is asked about, their profile, and how many vGPUs of it a GPU holds. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from fnmatch import fnmatchcase
from typing import Annotated, Final

import numpy as np

from gpuops.advise.occupancy import gpu_states
from gpuops.errors import ProfileUnknown, UsageError
from gpuops.extras.sizing.advice import Sizing, size_alike_vms, size_pool
from gpuops.extras.sizing.busy_shares import BusyHistory, BusyShares, SharingLimits
from gpuops.extras.sizing.pairs import PairModel, error_on_unknown, fit_pairs
from gpuops.extras.sizing.sharing import MOST_SHARERS
from gpuops.model.devices.catalog import Catalog
from gpuops.model.devices.shared_gpu import SharingWorkloads
from gpuops.model.devices.vgpu import VgpuProfile, near, resolve
from gpuops.model.nights.rotation_policy import Policy
from gpuops.model.nights.selector import Mark
from gpuops.model.vcenter.inventory import Inventory
from gpuops.model.vcenter.vm import Vm
from gpuops.plan.core.command_line import Names, Option
from gpuops.plan.devices.goal import offered_profile

_PATTERN: Final = frozenset("*?[")


class SizingSource(StrEnum):
    """The source of the busy shares."""

    NUMBERS = "numbers"
    WORKLOADS = "workloads"
    HISTORY = "history"


@dataclass(frozen=True, slots=True)
class SizeRequest:
    """The selected VMs, the number of sharers, and the allowed slowdown."""

    profile: Annotated[
        str | None, Option("The VMs of this vGPU profile, and as many as a GPU holds of it.", "NAME", Names.PROFILES)
    ] = None
    vm: Annotated[str | None, Option("VMs named so (ml-*), by name, path or moid:...", "VM", Names.VMS)] = None
    tag: Annotated[str | None, Option("VMs with this tag.", "CATEGORY:TAG")] = None
    sharers: Annotated[
        int | None, Option("With so many VMs on a GPU; default: several counts.", "N", least=1, most=MOST_SHARERS)
    ] = None
    at_most: Annotated[
        float | None, Option("Recommend the most VMs by which none takes longer than so many times.", "TIMES")
    ] = None
    guaranteed: Annotated[
        bool, Option("What --at-most allows must hold whatever the others do: not under best effort.")
    ] = False

    def __post_init__(self) -> None:
        if self.sharers is not None and not 1 <= self.sharers <= MOST_SHARERS:
            raise UsageError(f"--sharers {self.sharers} is out of range", hint=f"use 1 to {MOST_SHARERS}")
        if self.at_most is not None and not 1.0 <= self.at_most < float("inf"):
            raise UsageError(
                f"--at-most {self.at_most:g} is not 1 or more",
                hint="set the allowed slowdown: 1.2 = a fifth longer than alone",
            )
        if self.guaranteed and self.at_most is None:
            raise UsageError("--guaranteed needs --at-most", hint="add the allowed slowdown: --at-most 1.2")

    def limits(self, profile: VgpuProfile | None) -> SharingLimits:
        """Return the allowed slowdown and the vGPUs per GPU of this profile; without a profile the number is unlimited.

        Raises UsageError for more sharers than a GPU holds, and for a profile whose vGPUs share no time.
        """
        if profile is None:
            return SharingLimits(self.at_most, None, self.guaranteed)
        if profile.mig_backed:
            raise UsageError(
                f"{profile.name} is MIG-backed: each vGPU has its own part of the GPU, so they share no time",
                hint=f"gpuops capacity --profile {profile.name} shows how many fit",
            )
        if self.sharers is not None and self.sharers > profile.max_per_gpu:
            raise UsageError(
                f"--sharers {self.sharers}: a GPU holds {profile.max_per_gpu} vGPUs of {profile.name} at most",
                hint="use fewer sharers, or a smaller profile",
            )
        return SharingLimits(self.at_most, profile.max_per_gpu, self.guaranteed)


@dataclass(frozen=True, slots=True)
class SizingAnswer:
    """The sizing, with the data that it was made from."""

    source: SizingSource
    sizing: Sizing
    profile: str | None
    busy: float | None = None
    """The stated share of equal VMs; None for other sources."""
    overlap: float = 1.0
    inventory: Inventory | None = None
    """None = no vCenter was asked."""
    history: BusyHistory | None = None
    left_out: Mapping[str, str] | None = None
    """The reason for each VM that is left out, by its name."""
    pairs: PairModel | None = None
    pairs_observed: int = 0
    pairs_error: float | None = None


def size_numbers(request: SizeRequest, busy: float, overlap: float, profile: VgpuProfile | None) -> SizingAnswer:
    """Return the answer for VMs that are all alike. Raises UsageError as `SizeRequest.limits` does."""
    sizing = size_alike_vms(busy, request.sharers, request.limits(profile), overlap)
    return SizingAnswer(SizingSource.NUMBERS, sizing, profile.name if profile else None, busy, overlap)


def size_workloads(request: SizeRequest, sharing: SharingWorkloads, profile: VgpuProfile | None) -> SizingAnswer:
    """Return the answer for the VMs of these workloads. Raises UsageError as `SizeRequest.limits` does."""
    limits = request.limits(profile)
    expanded = [workload for workload in sharing.workloads for _ in range(workload.count)]
    model = fit_pairs(sharing.pairs)
    busy = np.array([[workload.busy for workload in expanded]])  # one step, a column for each VM
    kinds = tuple(workload.name for workload in expanded)
    shares = BusyShares(kinds, busy, np.zeros(1, np.int64), kinds, model if sharing.pairs else None)
    return SizingAnswer(
        SizingSource.WORKLOADS,
        size_pool(shares, request.sharers, limits),
        profile.name if profile else None,
        pairs=model if sharing.pairs else None,
        pairs_observed=len(sharing.pairs),
        pairs_error=error_on_unknown(sharing.pairs),
    )


def size_history(request: SizeRequest, pool: SizingPool, history: BusyHistory, inventory: Inventory) -> SizingAnswer:
    """Return the answer for the VMs of the pool, by their history."""
    limits = SharingLimits(request.at_most, pool.slots, request.guaranteed)
    model = fit_pairs(history.pairs) if history.pairs else None
    # the pairs of a history are known by VM names, so each VM is a workload of its own
    shares = replace(history.shares, kinds=history.shares.names, pairs=model)
    return SizingAnswer(
        SizingSource.HISTORY,
        size_pool(shares, request.sharers, limits),
        pool.profile.name if pool.profile else None,
        inventory=inventory,
        history=history,
        left_out={**pool.left_out, **history.left_out},
        pairs=model,
        pairs_observed=len(history.pairs),
        pairs_error=error_on_unknown(history.pairs),
    )


@dataclass(frozen=True, slots=True)
class SizingPool:
    """The VMs whose history is used."""

    vms: tuple[Vm, ...]
    profile: VgpuProfile | None
    """Their common profile; None = they have several of one GPU model, or one that the catalogue lacks."""
    slots: int | None
    """How many vGPUs a GPU holds of the largest of their profiles."""
    left_out: Mapping[str, str]
    together: tuple[tuple[str, ...], ...]
    """The VMs (ids) of each GPU that several share now."""


def known_profile(text: str, catalog: Catalog) -> VgpuProfile:
    """Return the profile of that name of any GPU model. Raises ProfileUnknown, ProfileAmbiguous."""
    names = [profile.name for board in catalog.boards for profile in board.profiles]
    try:
        vgpu_profile = catalog.profile(resolve(text, names))
    except ProfileUnknown as error:
        alike = near(text, names)
        suggestion = f"; near: {', '.join(alike)}" if alike else ""
        raise ProfileUnknown(
            f"no GPU of the catalogue offers a vGPU profile {text!r}{suggestion}",
            hint="gpuops help profiles explains the names of profiles",
        ) from error
    assert vgpu_profile is not None, "its name is of the catalogue"
    return vgpu_profile


def sizing_pool(
    request: SizeRequest, inventory: Inventory, catalog: Catalog, policy: Policy | None, pool: str | None
) -> SizingPool:
    """Return the selected VMs that have one time-sliced vGPU.

    Raises UsageError if no option selects VMs, if none of them has one, or if they have several GPU models;
    ProfileUnknown, and Refused for a profile that no host offers; VmNotFound, VmAmbiguous.
    """
    profile = None if request.profile is None else offered_profile(request.profile, inventory, catalog)
    if profile is None and request.vm is None and request.tag is None and policy is None:
        raise UsageError(
            "size: no option selects VMs",
            hint="use --profile, --vm, --tag or --policy; or --workloads FILE, or --busy 0.7 for equal VMs",
        )
    if profile is not None and (facts := catalog.profile(profile)) is not None:
        request.limits(facts)  # refuse the profile before its VMs are looked for
    selected_vms = [
        vm for vm in _select_by_name(request.vm, inventory) if _is_meant(vm, request, profile, policy, pool)
    ]
    left_out = {vm.name: reason for vm in selected_vms if (reason := _unfit(vm, catalog))}
    vms = tuple(sorted((vm for vm in selected_vms if vm.name not in left_out), key=lambda vm: (vm.name, vm.ref)))
    if not vms:
        first = next(iter(left_out.items()), None)
        message = f"none of these VMs can be sized: {first[0]} {first[1]}" if first else "no VM with a vGPU is selected"
        raise UsageError(message, hint="gpuops inventory --vms shows VMs and their vGPUs")
    slots = _slots(vms, catalog)
    vgpu_profiles = {catalog.profile(vm.profiles[0]) for vm in vms}
    common_profile = vgpu_profiles.pop() if len(vgpu_profiles) == 1 else None
    request.limits(common_profile)  # refuse the profile that the VMs turned out to have
    return SizingPool(vms, common_profile, slots, left_out, sharing_groups(vms, inventory, catalog))


def _select_by_name(pattern: str | None, inventory: Inventory) -> Sequence[Vm]:
    if pattern is None:
        return tuple(inventory.vms.values())
    if not _PATTERN & set(pattern):
        return (inventory.find_vm(pattern),)
    return [vm for vm in inventory.vms.values() if fnmatchcase(vm.name, pattern)]


def _is_meant(vm: Vm, request: SizeRequest, profile: str | None, policy: Policy | None, pool: str | None) -> bool:
    if vm.template or not vm.vgpus:
        return False
    if request.tag is not None and Mark(tag=request.tag).on(vm) is not True:
        return False
    if policy is not None and ((its := policy.pool_of(vm)) is None or pool not in (None, its.name)):
        return False
    return profile is None or profile in vm.profiles


def _unfit(vm: Vm, catalog: Catalog) -> str:
    """Return why the VM cannot be sized, or an empty text."""
    if len(vm.vgpus) > 1:
        return f"has {len(vm.vgpus)} vGPUs, and vCenter counts their use together"
    facts = catalog.profile(vm.profiles[0])
    return "has a MIG-backed vGPU, which shares no GPU time" if facts is not None and facts.mig_backed else ""


def _slots(vms: Sequence[Vm], catalog: Catalog) -> int | None:
    """Return how many vGPUs a GPU holds of the largest profile. Raises UsageError for VMs of several GPU models."""
    facts = [profile for vm in vms if (profile := catalog.profile(vm.profiles[0])) is not None]
    boards = sorted({profile.board for profile in facts})
    if len(boards) > 1:
        names = [board.name for key in boards if (board := catalog.board(key)) is not None]
        raise UsageError(
            f"these VMs have vGPUs of {' and '.join(names)}: busy shares of different GPU models cannot be compared",
            hint="run the command for each profile: --profile",
        )
    return min((profile.max_per_gpu for profile in facts), default=None)


def sharing_groups(vms: Sequence[Vm], inventory: Inventory, catalog: Catalog) -> tuple[tuple[str, ...], ...]:
    """Return the VMs (ids) of each GPU that several VMs share now, if one of these VMs is among them."""
    requested_refs = {vm.ref for vm in vms}
    groups = []
    for host in inventory.hosts.values():
        if requested_refs.isdisjoint(vm.ref for vm in inventory.vms_on(host)):
            continue
        for state in gpu_states(host, inventory, catalog):
            certain_vms = tuple(dict.fromkeys(tenant.vm for tenant in state.tenants if tenant.certain))
            if len(certain_vms) > 1 and not requested_refs.isdisjoint(certain_vms):
                groups.append(certain_vms)
    return tuple(groups)
