"""Checks each reason that `place` prints against the world it is about, by its words and numbers alone.

The figures are counted again from the VMs of a small vCenter, and what fits on a GPU is asked of the simulator's
admission. Nothing of the planner is called: what it says must be true, however it came to say it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import cycle
from typing import Final

from gpuops.model.devices.gpu import PhysicalGpu
from gpuops.model.vcenter.host import Host, NumaPolicy
from gpuops.model.vcenter.vm import DirectPathDevice, Vm
from gpuops.model.workloads.workload import Workload
from gpuops.plan.placement.vm_demand import PinPolicy
from gpuops.plan.queue.one_workload import Placed, Refusal
from gpuops.plan.queue.place import Placements
from gpuops.sim.state.board import GpuMode
from gpuops.sim.state.gpu_admission import GpuLoad, NotAdmitted, RunningVgpu, VgpuPolicy, WantedVgpu, admit
from tests.plan.small_vcenter import SmallVcenter

RETURN, REQUEST, OWN = "suspended VMs that come back", "earlier requests", "this VM's first vGPUs"
_PLACE: Final = r"esx-\d+(?: numa\d+| [0-9a-f]{4}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-9a-f])?"
_SUBJECTS: Final = re.compile(rf"(?P<places>{_PLACE}(?:, {_PLACE})*)(?: and \d+ more)?: (?P<reason>.*)")


def told_reasons(text: str) -> Iterator[tuple[str, str]]:
    """(name of the request, line) of each reason in what `place` prints."""
    name = ""
    for line in text.splitlines():
        if line.startswith("no place: "):
            name = line.removeprefix("no place: ").partition(":")[0]
        elif line.startswith(" " * 10) and not line.strip().startswith("next: "):
            yield name, line.strip()


@dataclass(frozen=True)
class Judge:
    """What is asked for, what became of it, and the world in which reasons are checked."""

    world: SmallVcenter
    found: Placements
    refused: Refusal
    pin: PinPolicy

    def check(self, line: str) -> None:
        """Raise AssertionError for a line that is false or cannot be parsed."""
        match = _SUBJECTS.fullmatch(line)
        for place in match["places"].split(", ") if match else [""]:
            self._check_one(place, match["reason"] if match else line)

    def _check_one(self, place: str, reason: str) -> None:
        for pattern, true in _READERS:
            match = re.fullmatch(pattern, reason)
            if match:
                assert true(_Place(self, place), match), f"{place}: {reason}"
                return
        raise AssertionError(f"no reader for {place}: {reason}")

    @property
    def asked(self) -> Workload:
        return self.refused.workload

    @property
    def profiles(self) -> list[str]:
        """The full name of the profile of each vGPU that is asked for."""
        names = {offer.name for host in self.world.hosts.values() for offer in host.profiles or ()}
        return [
            next(
                (name for name in names if name in (vgpus.profile, f"nvidia_{vgpus.profile}", f"grid_{vgpus.profile}")),
                "",
            )
            for vgpus in self.asked.vgpus
            for _ in range(vgpus.count)
        ]

    def parts(self, host: str) -> int:
        """How many NUMA nodes of the host it is said to need."""
        rules = (rejection.rule for rejection in self.refused.rejections if rejection.subject == host)
        matches = (re.fullmatch(_WIDER, rule) for rule in rules)
        return next((int(match["nodes"]) for match in matches if match), 1)

    @property
    def earlier(self) -> list[Placed]:
        before = self.found.answers[: self.found.answers.index(self.refused)]
        return [answer for answer in before if isinstance(answer, Placed)]


@dataclass(frozen=True)
class _Place:
    """A host, one of its NUMA nodes or GPUs; an empty name is the request itself."""

    judge: Judge
    name: str

    @property
    def host(self) -> Host:
        return next(host for host in self.judge.world.hosts.values() if host.name == self.name.split()[0])

    @property
    def parts(self) -> int:
        """The nodes of the host among which the VM is divided; what is asked of the whole host is not."""
        return self.judge.parts(self.host.name)

    def share(self, amount: int) -> int:
        return -(-amount // self.parts)

    @property
    def node(self) -> int | None:
        return int(self.name.split(" numa")[1]) if " numa" in self.name else None

    @property
    def gpus(self) -> list[PhysicalGpu]:
        """Those of the node, the host, or the one that is named."""
        word = self.name.partition(" ")[2]
        if word and self.node is None:
            return [gpu for gpu in self.host.gpus if str(gpu.address) == word]
        return [gpu for gpu in self.host.gpus if self.node in (None, gpu.numa_node)]

    def running(self) -> list[Vm]:
        world = self.judge.world
        return [world.vms[ref] for ref in world.running if world.vms[ref].host == self.host.ref]

    def back(self) -> list[Vm]:
        """Suspended VMs of the host that are kept their GPUs."""
        return [claim.vm for claim in self.judge.found.claims if not claim.lost and claim.host.ref == self.host.ref]

    def requests(self) -> list[Placed]:
        return [request for request in self.judge.earlier if request.placement.host.ref == self.host.ref]

    def names_on_gpus(self) -> list[tuple[str, str]]:
        """(whose it is, name of the VM) of each that a plan counts on these GPUs."""
        addresses = {gpu.address for gpu in self.gpus}
        claims = [claim for claim in self.judge.found.claims if not claim.lost and claim.host.ref == self.host.ref]
        return [
            *((RETURN, f"{claim.vm.name} (suspended)") for claim in claims if addresses & set(claim.gpus)),
            *((REQUEST, e.workload.name) for e in self.requests() if addresses & set(e.placement.seats.values())),
        ]

    def loads(self, *counted: str) -> list[GpuLoad]:
        """The GPUs with what runs, and with what of the plan is counted."""
        addresses = {str(gpu.address) for gpu in self.gpus}
        return self.with_plan([load for load in self.judge.world.gpus(self.host) if load.pci_id in addresses], *counted)

    def with_plan(self, running: list[GpuLoad], *counted: str) -> list[GpuLoad]:
        """These GPUs, with what of the plan is counted."""
        loads = {load.pci_id: load for load in running}
        for holder, profile, gpu in self.plan():
            load_after = _one_more(loads[gpu], profile) if holder in counted and gpu in loads else None
            if load_after is not None:
                loads[gpu] = load_after
        return list(loads.values())

    def plan(self) -> Iterator[tuple[str, str, str]]:
        """(whose, profile, GPU) of each vGPU that the plan counts on the host; those of a suspended VM, of which the
        plan says only where all are, one on each of their GPUs."""
        for claim in self.judge.found.claims:
            if not claim.lost and claim.host.ref == self.host.ref:
                dealt = zip(claim.vm.profiles, cycle(claim.gpus), strict=False)
                yield from ((RETURN, name, str(gpu)) for name, gpu in dealt)
        for request in self.requests():
            seats = [str(request.placement.seats[n]) for n in sorted(request.placement.seats)]
            yield from ((REQUEST, name, gpu) for name, gpu in zip(request.vm.profiles, seats, strict=False))

    def room(self, profile: str, *counted: str) -> int:
        """How many vGPUs of the profile are admitted on these GPUs, each in a VM of its own."""
        return sum(_room(load, profile) for load in self.loads(*counted))


def _one_more(load: GpuLoad, profile: str) -> GpuLoad | None:
    seats = admit(f"new-{len(load.seats)}", [WantedVgpu(profile)], [load], VgpuPolicy.PERFORMANCE)
    return None if isinstance(seats, NotAdmitted) else replace(load, seats=(*load.seats, *seats))


def _room(load: GpuLoad, profile: str) -> int:
    count = 0
    while (fuller := _one_more(load, profile)) is not None:
        load, count = fuller, count + 1
    return count


def _seats(place: _Place) -> tuple[RunningVgpu, ...]:
    (load,) = place.loads()
    return load.seats


def _runs(place: _Place, held_by: str | None) -> bool:
    """Whether the named holders of the GPU are the VMs that run on it; lines for several GPUs name no VM."""
    names = {place.judge.world.vms[seat.vm].name for seat in _seats(place)}
    return held_by is None or set(held_by.split(", ")) == names


def _is_locked(place: _Place, match: re.Match[str]) -> bool:
    seats = _seats(place)
    size = {seat.type.framebuffer_mib for seat in seats}
    return (
        size == {int(match["locked"])}
        and len(seats) == int(match["count"])
        and match["profile"] in place.judge.profiles
        and int(match["mib"]) not in size
        and place.room(match["profile"]) == 0
        and _runs(place, match["held"])
    )


def _full(place: _Place, match: re.Match[str]) -> bool:
    alike = any(place.room(profile) == 0 for profile in place.judge.profiles)
    return len(_seats(place)) == int(match["count"]) == int(match["limit"]) and alike and _runs(place, match["held"])


def _no_start(place: _Place, match: re.Match[str]) -> bool:
    used = sum(seat.type.framebuffer_mib for seat in _seats(place))
    return used == int(match["used"]) and place.room(match["profile"]) == 0 and _runs(place, match["held"])


def _no_instance(place: _Place, match: re.Match[str]) -> bool:
    (load,) = place.loads()
    meant_types = [p for p in place.judge.profiles if (t := load.board.by_name.get(p)) and t.instance]
    named = [p for p in meant_types if (i := load.board.by_name[p].instance) and i.name == match["instance"]]
    return (
        len(load.seats) == int(match["count"])
        and bool(named)
        and all(_room(load, profile) == 0 for profile in named)
        and _runs(place, match["held"])
    )


def _slots_taken(place: _Place, match: re.Match[str]) -> bool:
    takers = match["takers"].split(" and ")
    least, most = int(match["least"] or 0), int(match["most"] or match["least"] or 999)
    counted = [holder for holder, _ in place.names_on_gpus() if holder in takers]
    holder_names = {name for holder, name in place.names_on_gpus() if holder in takers}
    remaining_room = place.room(match["profile"], *takers)
    own_share = OWN in takers
    return (
        least <= place.room(match["profile"]) <= most
        and set(takers) - {OWN} == set(counted)
        and (holder_names == set((match["held"] or "").split(", ")) - {""} or (match["held"] is None))
        and (
            remaining_room == 0
            or own_share
            or (bool(match["perhaps"]) and _might_be_taken(place, match["profile"], takers))
        )
        and (not own_share or (len(place.judge.profiles) > 1 and match["profile"] in place.judge.profiles))
    )


def _might_be_taken(place: _Place, profile: str, takers: list[str]) -> bool:
    """Whether an earlier request may be elsewhere, or all would be taken if the vGPUs there lay in another way."""
    if any(len(request.placement.seats) > 1 for request in place.requests()):
        return True
    (load,) = place.loads()
    planned = [RunningVgpu("planned", gpu, load.board.by_name[p]) for who, p, gpu in place.plan() if who in takers]
    seats = (*load.seats, *(seat for seat in planned if seat.pci_id == load.pci_id))
    return any(_room(replace(load, seats=tuple(layout)), profile) == 0 for layout in _layouts(seats, load))


def _layouts(seats: tuple[RunningVgpu, ...], load: GpuLoad) -> Iterator[list[RunningVgpu]]:
    """Every way in which these vGPUs may lie on the GPU where starts are not told."""
    if not seats:
        yield []
        return
    first = seats[0]
    size, starts = first.type.size_gib, first.type.starts_gib
    if first.type.instance is not None:
        size, starts = first.type.instance.size, first.type.instance.starts
    for later_seats in _layouts(seats[1:], load):
        for start in starts if load.mode is not GpuMode.SAME_SIZE else (0,):
            blocked = [(seat.start or 0, (seat.start or 0) + _width(seat)) for seat in later_seats]
            if load.mode is GpuMode.SAME_SIZE or all(start + size <= low or high <= start for low, high in blocked):
                yield [replace(first, start=start), *later_seats]


def _width(seat: RunningVgpu) -> int:
    return seat.type.instance.size if seat.type.instance is not None else seat.type.size_gib


def _is_untold(place: _Place, match: re.Match[str]) -> bool:
    """Each of them has a vGPU on the GPU, and some elsewhere too, or of several kinds."""
    refs = {seat.vm for seat in _seats(place)}
    running = {vm.name: vm for vm in place.running()}
    named = [running[name] for name in match["held"].split(", ")]
    return match["profile"] in place.judge.profiles and all(vm.ref in refs and len(vm.profiles) > 1 for vm in named)


def _room_in_all(place: _Place, match: re.Match[str]) -> bool:
    beside = (match["beside"] or "").split(" and ")
    requested, least = place.judge.profiles.count(match["profile"]), int(match["there"])
    most = int(match["most"] or least)
    able = _able(place, match["profile"])
    counted = {holder for able_place in able for holder, _ in able_place.names_on_gpus()}
    room = sum(able_place.room(match["profile"], RETURN, REQUEST) for able_place in able)
    return (
        requested // place.parts <= int(match["needed"]) <= place.share(requested)
        and least < int(match["needed"])
        and counted == set(beside) & {RETURN, REQUEST}
        and ("its other vGPUs" in beside or least <= room <= most)
    )


def _able(place: _Place, profile: str) -> list[_Place]:
    """The GPUs of the profile's model."""
    candidates = [_Place(place.judge, f"{place.host.name} {gpu.address}") for gpu in place.gpus]
    return [candidate for candidate in candidates if any(profile in load.board.by_name for load in candidate.loads())]


def _memory(place: _Place, match: re.Match[str]) -> bool:
    returning, earlier = place.back(), place.requests()
    named = set((match["others"] or "").replace(" and ", ", ").split(", ")) - {""}
    reserved_mib = [*(vm.memory_reservation_mib or 0 for vm in (*place.running(), *returning))]
    reserved_mib += [request.workload.memory_mib for request in earlier]
    return (
        int(match["needed"]) == place.judge.asked.memory_mib
        and int(match["there"]) == (place.host.memory_mib or 0) - sum(reserved_mib)
        and named == ({RETURN} if returning else set()) | ({REQUEST} if earlier else set())
    )


def _memory_of_node(place: _Place, match: re.Match[str]) -> bool:
    (node,) = (node for node in place.host.numa_nodes if node.id == place.node)
    bound = [
        -(-request.workload.memory_mib // len(request.placement.local_nodes))
        for request in place.requests()
        if node.id in request.placement.local_nodes and request.workload.numa is not NumaPolicy.NONE
    ]
    return (
        int(match["needed"]) == place.share(place.judge.asked.memory_mib)
        and int(match["there"]) == node.memory_mib - sum(bound)
        and (match["others"] == REQUEST) == bool(bound)
    )


def _cores(place: _Place, match: re.Match[str]) -> bool:
    (node,) = (node for node in place.host.numa_nodes if node.id == place.node)
    needed = place.share(place.judge.asked.vcpus)
    return int(match["needed"]) == needed > int(match["there"]) == node.logical_cpus // 2


def _wider(place: _Place, match: re.Match[str]) -> bool:
    """Each figure is its part, and one node does not do for one of them."""
    nodes, workload = int(match["nodes"]), place.judge.asked
    devices = len(place.judge.profiles) or workload.gpus
    parts = {int(match["least"]), int(match["most"] or match["least"])}
    figures = int(match["devices"]) == devices and parts == {devices // nodes, -(-devices // nodes)}
    shares = (-(-workload.vcpus // nodes), -(-workload.memory_mib // nodes)) == (int(match["cores"]), int(match["mib"]))
    node = min(place.host.numa_nodes, key=lambda node: node.memory_mib)
    most = max(
        _room_if_empty(_Place(place.judge, f"{place.host.name} numa{numa_node.id}"))
        for numa_node in place.host.numa_nodes
    )
    large = workload.vcpus > node.logical_cpus // 2 or workload.memory_mib > node.memory_mib or devices > most
    return nodes > 1 and figures and shares and large


def _room_if_empty(node: _Place) -> int:
    """At most how many of the requested devices the GPUs of a node would give if nothing ran."""
    if not node.judge.profiles:
        return len([gpu for gpu in node.gpus if gpu.passthrough is not None and gpu.passthrough.active])
    loads = [replace(load, seats=()) for load in node.loads()]
    return sum(max(_room(load, profile) for profile in set(node.judge.profiles)) for load in loads)


def _threads(place: _Place, match: re.Match[str]) -> bool:
    return int(match["needed"]) == place.judge.asked.vcpus > int(match["there"]) == place.host.cpu_threads


def _free_devices(place: _Place, match: re.Match[str]) -> bool:
    kind = (int(match["vendor"], 16), int(match["device"], 16))
    node = None if match["node"] is None else int(match["node"])
    alike = {gpu.address for gpu in place.host.gpus if (gpu.vendor_id, gpu.device_id) == kind}
    addresses = {gpu.address for gpu in place.host.gpus if gpu.address in alike and node in (None, gpu.numa_node)}
    holders = {vm.name: addresses & _passed_to(vm) for vm in place.running()}
    holders |= {f"{vm.name} (suspended)": addresses & _passed_to(vm) for vm in place.back()}
    for request in place.requests():
        holders[f"{request.workload.name} (an earlier request)"] = addresses & set(request.placement.seats.values())
    by_holder = {name: gpus for name, gpus in holders.items() if gpus}
    return (
        len(addresses) == int(match["all"])
        and set(by_holder) == set((match["held"] or "").split(", ")) - {""}
        and int(match["there"]) == len(addresses) - sum(map(len, by_holder.values()))
        and place.judge.asked.gpus // place.parts <= int(match["needed"]) <= place.share(place.judge.asked.gpus)
        and int(match["needed"]) > int(match["there"])
    )


def _no_device(place: _Place, match: re.Match[str]) -> bool:
    kind = (int(match["vendor"], 16), int(match["device"], 16))
    node = None if match["node"] is None else int(match["node"])
    passed_through = [gpu for gpu in place.host.gpus if gpu.passthrough is not None and gpu.passthrough.active]
    return not any((g.vendor_id, g.device_id) == kind and node in (None, g.numa_node) for g in passed_through)


def _passed_to(vm: Vm) -> set[object]:
    return {device.address for device in vm.devices or () if isinstance(device, DirectPathDevice)}


def _offers_not(place: _Place, match: re.Match[str]) -> bool:
    offered = {offer.name for offer in place.host.profiles or ()}
    return not offered & set(match["profiles"].split(", "))


def _no_model(place: _Place, match: re.Match[str]) -> bool:
    return match["profile"] in place.judge.profiles and not _able(place, match["profile"])


def _whole(place: _Place, match: re.Match[str]) -> bool:
    (gpu,) = place.gpus
    return gpu.passthrough is not None and gpu.passthrough.active


def _holder(place: _Place, match: re.Match[str]) -> bool:
    (gpu,) = place.gpus
    return any(vm.name == match["name"] and gpu.address in _passed_to(vm) for vm in place.running())


def _kept_for_suspended(place: _Place, match: re.Match[str]) -> bool:
    (gpu,) = place.gpus
    return any(f"{vm.name} (suspended)" == match["name"] and gpu.address in _passed_to(vm) for vm in place.back())


def _is_requested(place: _Place, match: re.Match[str]) -> bool:
    (gpu,) = place.gpus
    alike = (request for request in place.requests() if request.workload.name == match["name"])
    return any(gpu.address in earlier.placement.seats.values() for earlier in alike)


def _not_of_host(place: _Place, match: re.Match[str]) -> bool:
    return not place.gpus


def _other_node(place: _Place, match: re.Match[str]) -> bool:
    (gpu,) = place.gpus
    nodes = (int(match["asked"]), int(match["other"]))
    return int(match["node"]) == nodes[0] and gpu.numa_node == nodes[1] != nodes[0]


def _no_pin(place: _Place, match: re.Match[str]) -> bool:
    whole_host = _Place(place.judge, place.host.name)
    elsewhere = (able_place for name in place.judge.profiles for able_place in _able(whole_host, name))
    return place.judge.pin is PinPolicy.NEVER and any(
        gpu.numa_node != place.node for able_place in elsewhere for gpu in able_place.gpus
    )


def _alone(place: _Place, match: re.Match[str]) -> bool:
    profiles = place.judge.profiles
    return match["profile"] in profiles and len(profiles) == int(match["count"]) > 1


def _models(place: _Place, match: re.Match[str]) -> bool:
    """Each GPU model is the prefix of its profiles' names: `grid_a100-...`."""
    boards = {name.split("_")[1].split("-")[0] for name in place.judge.profiles}
    return len(boards) == len(match["models"].split(" and ")) > 1


def _given_nowhere(place: _Place, match: re.Match[str]) -> bool:
    gpus = [gpu for host in place.judge.world.hosts.values() for gpu in host.gpus]
    return match["there"] == "none" and not any(gpu.passthrough and gpu.passthrough.active for gpu in gpus)


def _address_nowhere(place: _Place, match: re.Match[str]) -> bool:
    gpus = [gpu for host in place.judge.world.hosts.values() for gpu in host.gpus]
    passed_through = sorted({str(gpu.address) for gpu in gpus if gpu.passthrough and gpu.passthrough.active})
    return match["there"] == (", ".join(passed_through) or "none") and match["address"] not in passed_through


_WIDER: Final = (
    r"one NUMA node is too small for the VM: each of (?P<nodes>\d+) nodes needs "
    r"(?P<least>\d+)(?: or (?P<most>\d+))? of its "
    r"(?P<devices>\d+) v?GPUs, (?P<cores>\d+) cores and (?P<mib>\d+) MiB"
)
_HELD: Final = r"(?:; held by (?P<held>.*?))?: needs 1 slot, 0 there"
_LOCKED: Final = (
    r"locked to vGPUs of (?P<locked>\d+) MiB while (?P<count>\d+) run, (?P<profile>\S+) has (?P<mib>\d+) MiB"
)
_TAKEN: Final = (
    r"its (?:room|(?P<least>\d+)(?: to (?P<most>\d+))? slots?) for (?P<profile>\S+) (?:is|are) "
    r"(?P<perhaps>perhaps )?taken by (?P<takers>.*?)(?:; held by (?P<held>.*))?"
)
_ROOM: Final = (
    r"room for (?P<profile>\S+)(?: beside (?P<beside>.*))?: "
    r"needs (?P<needed>\d+) slots, (?P<there>\d+)(?: to (?P<most>\d+))? there"
)
_NUMBERS: Final = r"needs (?P<needed>\d+){0}, (?P<there>\d+) there"
_TYPE: Final = r"device of type (?P<vendor>[0-9a-f]{4}):(?P<device>[0-9a-f]{4})"
_NODE: Final = r"(?: on NUMA node (?P<node>\d+))?"
_READERS: Final[list[tuple[str, Callable[[_Place, re.Match[str]], bool]]]] = [
    (_LOCKED + _HELD, _is_locked),
    (rf"(?P<count>\d+) of (?P<limit>\d+) vGPUs run{_HELD}", _full),
    (rf"(?P<used>\d+) of \d+ MiB used, no start left for (?P<profile>\S+?){_HELD}", _no_start),
    (rf"no GPU instance (?P<instance>\S+) fits beside the (?P<count>\d+) there{_HELD}", _no_instance),
    (_TAKEN, _slots_taken),
    (
        r"no slot for (?P<profile>\S+) can be promised: vCenter does not report which vGPUs of (?P<held>.*) run on it",
        _is_untold,
    ),
    (_ROOM, _room_in_all),
    (rf"memory to reserve in full, beside what running VMs(?P<others>.*) reserve: {_NUMBERS.format(' MiB')}", _memory),
    (rf"memory beside the GPU(?:, without that of (?P<others>.*))?: {_NUMBERS.format(' MiB')}", _memory_of_node),
    (_WIDER, _wider),
    (rf"cores beside the GPU: {_NUMBERS.format(' cores')}", _cores),
    (rf"logical CPUs for the VM's vCPUs: {_NUMBERS.format('')}", _threads),
    (
        rf"{_TYPE} that is free{_NODE} \((?P<all>\d+) there(?:, held by (?P<held>.*))?\): {_NUMBERS.format('')}",
        _free_devices,
    ),
    (rf"has no {_TYPE} in passthrough{_NODE}", _no_device),
    (r"does not offer (?P<profiles>.*)", _offers_not),
    (r"has no GPU that runs (?P<profile>\S+) \(it has: .*\)", _no_model),
    (r"is not a GPU of this host", _not_of_host),
    (r"is not on NUMA node (?P<node>\d+): needs (?P<asked>\d+), (?P<other>\d+) there", _other_node),
    (r"the host may choose a GPU on another NUMA node, and pinning is switched off", _no_pin),
    (r"(?P<profile>\S+) \(series \S\) must be the only vGPU of its VM; (?P<count>\d+) are requested", _alone),
    (r"its vGPUs must be of one GPU model, not of (?P<models>.*)", _models),
    (r"no host has a whole GPU in passthrough \(models in passthrough: (?P<there>.*)\)", _given_nowhere),
    (
        r"no requested host has a GPU or another device at (?P<address>\S+) \(in passthrough: (?P<there>.*)\)",
        _address_nowhere,
    ),
    (r"is given to DirectPath I/O", _whole),
    (r"is held by (?P<name>\S+), which runs", _holder),
    (r"is kept for the return of (?P<name>.*)", _kept_for_suspended),
    (r"is taken by (?P<name>\S+), an earlier request", _is_requested),
]
"""A pattern for each sentence, and what it must come to."""
