"""Which vGPUs run on each GPU of a host, as far as vCenter reports it.

vCenter lists the VMs on a GPU, not which vGPU of a VM is where (vSphere API, HostGraphicsInfo.vm). If the place of a
vGPU is not known, it counts on every GPU that it may be on: a GPU may seem fuller than it is, never emptier.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property

from gpuops.model.devices.catalog import Catalog
from gpuops.model.devices.gpu import PhysicalGpu, VgpuPlacement
from gpuops.model.vcenter.host import Host
from gpuops.model.vcenter.inventory import Inventory
from gpuops.model.vcenter.vm import Awaited, Vm, passthru_number, pins_of


@dataclass(frozen=True, slots=True)
class Tenant:
    """One running vGPU on a GPU."""

    vm: str
    name: str
    """The VM's name."""
    profile: str
    certain: bool = True
    """False: it may as well be on another GPU of the host."""
    start: int | None = None
    """Where it lies on the GPU (`VgpuPlacement.start`); None = not known, or the mode has no starts."""
    awaited: Awaited | None = None
    """Why a plan counts it although it does not run; None = it runs."""


@dataclass(frozen=True)
class GpuState:
    """One GPU and what runs on it. Not slotted: what tells it from others is worked out once, on first use."""

    gpu: PhysicalGpu
    tenants: tuple[Tenant, ...] = ()
    unclear: str = ""
    """Why it is not known what runs on it; empty = `tenants` lists everything that may run there."""

    @property
    def holders(self) -> tuple[str, ...] | None:
        """Return the profiles of the vGPUs that may be on it; None = not known."""
        return None if self.unclear else tuple(tenant.profile for tenant in self.tenants)

    @property
    def starts(self) -> tuple[int | None, ...]:
        """Return the start of each of the holders; None = not known."""
        return tuple(tenant.start for tenant in self.tenants)

    @property
    def fewest(self) -> tuple[tuple[str, ...], ...]:
        """Return sets of profiles, each sorted: at least the vGPUs of one of these sets run on the GPU, maybe more.

        A VM that the GPU lists has at least one vGPU on it. If the VM has several profiles, it is not known which one
        that is: each choice gives a set.
        """
        sets = {tuple(sorted(tenant.profile for tenant in self.tenants if tenant.certain))}
        settled = {tenant.vm for tenant in self.tenants if tenant.certain}
        listed = {tenant.vm for tenant in self.tenants if tenant.vm in (self.gpu.vms or ())}
        for vm in sorted(listed - settled):
            one_of = {tenant.profile for tenant in self.tenants if tenant.vm == vm}
            sets = {tuple(sorted((*profile_set, profile))) for profile_set in sets for profile in one_of}
        return tuple(sorted(sets))

    @property
    def vm_names(self) -> tuple[str, ...]:
        """Return names of the VMs on it, each once, sorted."""
        return tuple(sorted({tenant.name for tenant in self.tenants}))

    def alike(self, vm: str) -> object:
        """Return a key that is equal for GPUs on which a place for `vm` is judged in the same way.

        Such GPUs differ only in their addresses and in which VMs are on them.
        """
        return (self._alike, tuple([number for number, tenant in enumerate(self.tenants) if tenant.vm == vm]))

    @cached_property
    def _alike(self) -> object:
        gpu = self.gpu
        tenants: tuple[object, ...] = tuple((tenant.profile, tenant.start, tenant.awaited) for tenant in self.tenants)
        if not all(tenant.certain for tenant in self.tenants):
            numbers: dict[str, int] = {}
            vms = ((numbers.setdefault(t.vm, len(numbers)), t.certain, t.vm in (gpu.vms or ())) for t in self.tenants)
            tenants = tuple(zip(tenants, vms, strict=True))
        return _token((gpu.admission_traits, gpu.vgpus is None, self.unclear, tenants))

    def with_tenants(self, *tenants: Tenant) -> GpuState:
        return GpuState(self.gpu, (*self.tenants, *tenants), self.unclear)

    def without(self, vm: str) -> GpuState:
        remaining_tenants = tuple(tenant for tenant in self.tenants if tenant.vm != vm)
        return self if len(remaining_tenants) == len(self.tenants) else replace(self, tenants=remaining_tenants)


@cache
def _token(alike: tuple[object, ...]) -> object:
    """Return one object for all equal arguments, which hashes and compares much faster than they do."""
    return object()


def may_run(gpu: PhysicalGpu, profile: str, catalog: Catalog) -> bool | None:
    """Return whether the GPU is of the model that the profile is made for, whatever its mode; None = not known."""
    facts = catalog.profile(profile)
    board = catalog.board_by_pci(gpu.vendor_id, gpu.device_id, gpu.subsystem_id)
    return None if facts is None or board is None else facts.board == board.key


def gpu_states(host: Host, inventory: Inventory, catalog: Catalog) -> tuple[GpuState, ...]:
    """Return the GPUs of a host with the vGPUs that run on each, by PCI address."""
    vms = inventory.vms_on(host)
    answers = inventory.worked_out.setdefault(gpu_states, {})
    assert isinstance(answers, dict), "only this function uses this key"
    # A plan asks each host several times: its last answer is remembered.
    cached = answers.get(host.ref)
    if isinstance(cached, _CachedStates) and cached.host is host and cached.vms is vms and cached.catalog is catalog:
        return cached.states
    states = _place_tenants(host, inventory, catalog)
    refs_on_host = {vm.ref for vm in vms}
    # A VM of another host that a GPU lists may change while this host stays the same: such an answer is not kept.
    if all(refs_on_host.issuperset(gpu.vms or ()) for gpu in host.gpus):
        answers[host.ref] = _CachedStates(host, vms, catalog, states)
    return states


@dataclass(frozen=True, slots=True)
class _CachedStates:
    """An answer of `gpu_states`, with the objects that it was made from."""

    host: Host
    vms: tuple[Vm, ...]
    catalog: Catalog
    states: tuple[GpuState, ...]


def _place_tenants(host: Host, inventory: Inventory, catalog: Catalog) -> tuple[GpuState, ...]:
    """Put the vGPUs of running VMs on GPUs: by reported placements, else by pins, else wherever they may be."""
    gpus = sorted(host.gpus, key=lambda gpu: gpu.address)
    tenants: list[list[Tenant]] = [[] for _ in gpus]
    listed: dict[str, list[int]] = {}
    for index, gpu in enumerate(gpus):
        for ref in gpu.vms or ():
            listed.setdefault(ref, []).append(index)
    placements = _placements_by_vm(gpus)
    for vm in inventory.vms_on(host):
        profiles = vm.profiles if vm.may_run else ()
        if profiles:
            where = listed.get(vm.ref, ())
            # (index of the GPU, vGPU) for each GPU that a vGPU is or may be on
            seats = (
                _placed_seats(vm, profiles, placements)
                or _pinned_seats(vm, where, gpus)
                or _seats(vm, profiles, where, gpus, catalog)
            )
            for index, tenant in seats:
                tenants[index].append(tenant)
    return tuple(
        GpuState(gpu, tuple(gpu_tenants), _unclear(gpu, inventory.vms))
        for gpu, gpu_tenants in zip(gpus, tenants, strict=True)
    )


def _unclear(gpu: PhysicalGpu, vms: Mapping[str, Vm]) -> str:
    if gpu.vms is None:
        return "the host does not tell which VMs run on it"
    for ref in gpu.vms:
        vm = vms.get(ref)
        if vm is None:
            return f"it runs {ref}, a VM that this login cannot see"
        if vm.devices is None and vm.may_run:
            return f"it runs {vm.name}, whose devices cannot be read"
    return ""


def _placements_by_vm(gpus: Sequence[PhysicalGpu]) -> dict[str, list[tuple[int, VgpuPlacement]]]:
    """Return by VM each vGPU that the host's nvidia-smi lists, with the index of its GPU.

    If nvidia-smi lists other VMs on a GPU than vCenter does now, it was read too early or too late, and is ignored.
    """
    placements: dict[str, list[tuple[int, VgpuPlacement]]] = {}
    for index, gpu in enumerate(gpus):
        if gpu.vgpus is not None and {placement.vm for placement in gpu.vgpus} == set(gpu.vms or ()):
            for placement in gpu.vgpus:
                placements.setdefault(placement.vm, []).append((index, placement))
    return placements


def _placed_seats(
    vm: Vm, profiles: Sequence[str], placements: Mapping[str, Sequence[tuple[int, VgpuPlacement]]]
) -> list[tuple[int, Tenant]]:
    """Return where nvidia-smi shows the VM's vGPUs; empty if it shows other profiles than the VM has."""
    seats = placements.get(vm.ref, ())
    if sorted(placement.profile for _, placement in seats) != sorted(profiles):
        return []
    return [
        (index, Tenant(vm.ref, vm.name, placement.profile, True, placement.start, vm.awaited))
        for index, placement in seats
    ]


def _pinned_seats(vm: Vm, where: Sequence[int], gpus: Sequence[PhysicalGpu]) -> list[tuple[int, Tenant]]:
    """Return the GPU (index) to which the VM's own pins bind each of its vGPUs; [] unless exactly these GPUs list it.

    `where`: the indexes of the GPUs that list the VM.

    A pin that was changed since the VM started names a GPU that does not list it, unless it was changed for another of
    the same VM's GPUs. A VM on one GPU needs no pin.
    """
    if len(where) < 2:
        return []
    index_of = {gpus[index].address: index for index in where}
    pins = pins_of(vm)
    pinned_vgpus = [(pins.get(passthru_number(device.key)), device.profile) for device in vm.vgpus]
    # also unequal if a vGPU has no pin: its address is None
    if {address for address, _ in pinned_vgpus} != set(index_of):
        return []
    return [
        (index_of[address], Tenant(vm.ref, vm.name, profile, awaited=vm.awaited))
        for address, profile in pinned_vgpus
        if address is not None
    ]


def _seats(
    vm: Vm, profiles: Sequence[str], where: Sequence[int], gpus: Sequence[PhysicalGpu], catalog: Catalog
) -> Iterable[tuple[int, Tenant]]:
    """Yield where each vGPU of a running VM may be: on the GPUs that list the VM, or on all GPUs of its model.

    Yields the index of the GPU and the vGPU; a vGPU that may be on several GPUs is yielded for each of them. `where`:
    the indexes of the GPUs that list the VM.
    """
    listed = bool(where)
    for index in where or range(len(gpus)):
        possible_profiles = [profile for profile in profiles if may_run(gpus[index], profile, catalog) is not False]
        alike = len(set(possible_profiles)) == 1
        if listed and alike:
            # Every GPU that lists the VM has at least one, so this one has no more than the others leave.
            possible_profiles = possible_profiles[: max(1, len(profiles) - len(where) + 1)]
        for number, profile in enumerate(possible_profiles):
            certain = listed and (len(where) == 1 or (alike and number == 0))
            yield index, Tenant(vm.ref, vm.name, profile, certain, awaited=vm.awaited)
