"""Finds places for several VMs on other hosts at once, by trying orders and hosts until all of them fit.

The host chooses the GPU of a VM that arrives, so an early VM may take the only GPU that fits a later one. Placing the
largest VM first, each on the host with the most room, mostly works; where it fails, another order may work.

The search tries all orders and hosts, depth first, and starts with that usual order. VMs that are alike count as one,
and so do orders that lead to the same GPUs. A VM that finds no place now finds none later, because no arrival makes
room. So the search ends at once if the VMs of one kind do not even fit without the others. It gives up after
`MOST_TRIES` tries and reports that. VMs that run elsewhere are not moved to make room.

`plan/hosts/change/emptying.py` asks it for hosts that are emptied, `plan/hosts/readiness/loss.py` for one that failed.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from gpuops.model.vcenter.host import Host
from gpuops.model.vcenter.inventory import Inventory
from gpuops.model.vcenter.vm import PowerState, Vm

MOST_TRIES: Final = 2_000
"""So many times a VM is tried on a host: about a second."""

Admit = Callable[[Vm, Host, Inventory], Inventory | None]
"""The snapshot with the VM on that host; None = it surely finds no place there."""


@dataclass(frozen=True, slots=True)
class PlacesFound:
    """The VMs with their hosts, in this order; None = no places were found.

    If `complete` is False, the search gave up, and places may still exist.
    """

    places: tuple[tuple[Vm, Host], ...] | None
    complete: bool


def find_places(
    groups: Sequence[Sequence[Vm]],
    targets: Mapping[str, Sequence[str]],
    inventory: Inventory,
    admit: Admit,
    single: Collection[str] = (),
) -> PlacesFound:
    """Return a place for every VM. The VMs of the first group come first, in any order, then those of the next.

    `targets`: VM ref -> refs of the hosts that may take it and see its files, the likeliest first.
    `single`: refs of VMs that are not treated as equal to any other VM.
    """
    vms = [vm for group in groups for vm in group]
    search = _Search(targets, admit, _kinds(vms, targets, single))
    if search.too_many(vms, inventory):
        return PlacesFound(None, search.tries <= MOST_TRIES)
    places = search.place([list(group) for group in groups if group], inventory)
    return PlacesFound(None if places is None else tuple(places), search.tries <= MOST_TRIES)


@dataclass(slots=True)
class _Search:
    targets: Mapping[str, Sequence[str]]
    admit: Admit
    kinds: Mapping[str, int]
    """By ref of a VM; those of one kind may stand for each other."""
    tries: int = 0
    failed: set[object] = field(default_factory=set)
    """The states that are known to lead nowhere: the waiting VMs, and the content of each host."""

    def too_many(self, vms: Sequence[Vm], inventory: Inventory) -> bool:
        """Return whether there are more VMs of one kind than find a place without any others."""
        by_kind: dict[int, list[Vm]] = {}
        for vm in vms:
            by_kind.setdefault(self.kinds[vm.ref], []).append(vm)
        return any(not self._all_fit(by_kind[kind], inventory) for kind in sorted(by_kind))

    def _all_fit(self, equal_vms: Sequence[Vm], inventory: Inventory) -> bool:
        """Return whether all of these find a place. They are equal, so one host after another is filled."""
        waiting = list(equal_vms)
        for ref in self.targets[equal_vms[0].ref]:
            while waiting:
                self.tries += 1
                after = self.admit(waiting[-1], inventory.hosts[ref], inventory)
                if after is None:
                    break
                inventory = after
                waiting.pop()
        return not waiting

    def place(self, groups: list[list[Vm]], inventory: Inventory) -> list[tuple[Vm, Host]] | None:
        """Return a host for each VM of these groups, in the order of placing; None = none found. Depth first."""
        if not groups:
            return []
        state = self._state(groups, inventory)
        if state in self.failed:
            return None
        for vm, host, after in self._choices(groups, inventory):
            remaining_vms = [waiting_vm for waiting_vm in groups[0] if waiting_vm is not vm]
            following = self.place([remaining_vms, *groups[1:]] if remaining_vms else groups[1:], after)
            if following is not None:
                return [(vm, host), *following]
            if self.tries > MOST_TRIES:
                return None
        self.failed.add(state)
        return None

    def _choices(self, groups: list[list[Vm]], inventory: Inventory) -> list[tuple[Vm, Host, Inventory]]:
        """Return every VM that may be placed next, one of each kind, with each host that takes it. Empty if any waiting
        VM finds no place now: no later arrival makes room for it."""
        next_steps: list[tuple[Vm, Host, Inventory]] = []
        for number, group in enumerate(groups):
            for vm in self._one_of_each(group):
                places = list(self._on_each(vm, inventory))
                if not places:
                    return []
                if number == 0:  # later groups wait until this one is placed
                    next_steps += places
        return next_steps

    def _on_each(self, vm: Vm, inventory: Inventory) -> Iterator[tuple[Vm, Host, Inventory]]:
        """Yield each host that takes the VM, and the snapshot with it there, until the tries are used up."""
        for ref in self.targets[vm.ref]:
            self.tries += 1
            if self.tries > MOST_TRIES:
                return
            after = self.admit(vm, inventory.hosts[ref], inventory)
            if after is not None:
                yield vm, inventory.hosts[ref], after

    def _one_of_each(self, group: Sequence[Vm]) -> Iterator[Vm]:
        """Yield the first VM of each kind."""
        yielded_kinds: set[int] = set()
        for vm in group:
            kind = self.kinds[vm.ref]
            if kind not in yielded_kinds:
                yielded_kinds.add(kind)
                yield vm

    def _state(self, groups: list[list[Vm]], inventory: Inventory) -> object:
        """Return the waiting VMs by kind, and the content of the hosts that may take one of them, by kind too."""
        waiting = tuple(tuple(sorted(self.kinds[vm.ref] for vm in group)) for group in groups)
        hosts = sorted({ref for refs in self.targets.values() for ref in refs})
        return waiting, tuple(self._content(inventory.hosts[ref], inventory) for ref in hosts)

    def _content(self, host: Host, inventory: Inventory) -> object:
        """Return what runs on the host and on which of its GPUs, with VMs that are placed here by kind."""
        running = sorted(self._kind_or_ref(vm.ref) for vm in inventory.vms_on(host) if vm.power is PowerState.ON)
        gpus = []
        for gpu in host.gpus:
            vms = None if gpu.vms is None else tuple(sorted(map(self._kind_or_ref, gpu.vms)))
            vgpus = None if gpu.vgpus is None else tuple(sorted((v.profile, v.start or 0) for v in gpu.vgpus))
            gpus.append((vms, vgpus))
        return tuple(running), tuple(gpus), tuple(sorted(str(binding.address) for binding in host.bindings))

    def _kind_or_ref(self, ref: str) -> str:
        return f"kind {self.kinds[ref]}" if ref in self.kinds else ref


def _kinds(vms: Sequence[Vm], targets: Mapping[str, Sequence[str]], single: Collection[str]) -> Mapping[str, int]:
    """Return a number for each VM that is equal for VMs with the same needs."""
    numbers: dict[object, int] = {}
    kinds: dict[str, int] = {}
    for vm in vms:
        # the key of a device is only its number in the VM
        devices = None if vm.devices is None else tuple(replace(device, key=0) for device in vm.devices)
        settings = tuple(sorted((vm.extra_config or {}).items()))
        size = vm.vcpus, vm.memory_mib, vm.memory_reservation_mib, vm.cpu_reservation_mhz, vm.cores_per_socket
        present_state = vm.host, tuple(targets[vm.ref]), vm.unreadable, vm.power
        # the ref makes a VM of `single` different from every other VM
        needs = devices, settings, size, present_state, vm.ref if vm.ref in single else ""
        kinds[vm.ref] = numbers.setdefault(needs, len(numbers))
    return kinds
