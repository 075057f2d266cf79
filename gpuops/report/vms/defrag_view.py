"""The output of `gpuops defrag` as text and JSON: the moves in their order, what they free, and the VMs that stay."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Annotated, Final, Self

from msgspec import field

from gpuops.plan.core.rejection import some_names
from gpuops.plan.moving.defrag import (
    Defragmentation,
    GpuChange,
    GpuHolding,
    HostChange,
    PlannedMove,
    StayingVm,
    UnclearGpu,
)
from gpuops.plan.moving.movability import MoveMethod
from gpuops.plan.moving.moves import ArrivalBasis
from gpuops.report.document import DocumentRecord, NamedRecord, RangeRecord, Ref, VersionedSiteDocument, printed
from gpuops.report.layout import Shown, Text, TextTable
from gpuops.report.text import PINNED, count, size, vcenter_heading

_MOST_NAMED: Final = 4


def defrag_text(defrag: Defragmentation) -> Shown:
    """Return a heading and figures, the moves, the GPUs before and after, the VMs that stay, and a closing line."""
    heading = vcenter_heading(defrag.inventory, count(defrag.gpus, "GPU"))
    lines: list[Shown] = [heading, Text(_free_figures(defrag))]
    # if VMs move, or moves that were not found could free more, the result depends on the GPUs that hosts choose
    if defrag.assumes and (defrag.moves or defrag.bound > defrag.before):
        assumed = f"assumed: of the GPUs with room, hosts choose in {'; in '.join(defrag.assumes)}"
        lines.append(Text(assumed, "dim"))
    if defrag.moves:
        lines += [Text(), _move_table(defrag.moves), Text(), _host_table(defrag)]
    if any(move.pins for move in defrag.moves):
        lines.append(Text(f"{PINNED}; no later defrag moves these VMs", "dim"))
    lines += [line for stay in _group_by_reason(defrag.stays) for line in _stay_lines(stay)]
    lines += _unclear_lines(defrag)
    return (*lines, Text(_closing_line(defrag), "bold"))


class FreeInAllRecord(DocumentRecord, frozen=True):
    """GPUs, or slots of the profile, that are free."""

    before: int
    after: int
    at_most: Annotated[int, "whatever is moved"]


class FragmentedRecord(DocumentRecord, frozen=True):
    """Free memory that the average VM cannot use, as `gpuops capacity` measures it."""

    before_mib: int
    after_mib: int


class MoveRecord(DocumentRecord, frozen=True):
    """One move of a VM."""

    vm: NamedRecord
    from_: NamedRecord = field(name="from")
    to: NamedRecord
    how: MoveMethod
    gpus: Annotated[list[str], "PCI addresses on the host that it goes to"]
    gpus_known_by: ArrivalBasis
    pinned: Annotated[bool, "its vGPUs are bound to these GPUs before it starts there"]
    free_then: int

    @classmethod
    def made_of(cls, move: PlannedMove) -> Self:
        return cls.from_attributes(
            move,
            from_=move.source,
            to=move.target,
            how=move.way,
            gpus=list(map(str, move.gpus)),
            gpus_known_by=move.basis,
            pinned=bool(move.pins),
            free_then=move.free,
        )


class GainRecord(DocumentRecord, frozen=True):
    """So many moves free so much."""

    moves: int
    free: int


class FreeOfHostRecord(DocumentRecord, frozen=True):
    """GPUs, or slots of the profile, that are free."""

    before: int
    after: int


class HoldingRecord(DocumentRecord, frozen=True):
    """The vGPUs on a GPU, and what is free of it."""

    vgpus: RangeRecord
    free: int

    @classmethod
    def made_of(cls, holding: GpuHolding) -> Self:
        return cls.from_attributes(holding, vgpus=holding)


class MovedGpuRecord(DocumentRecord, frozen=True):
    """A GPU that changes."""

    address: Annotated[str, "PCI address"]
    address_certain: bool
    before: HoldingRecord
    after: HoldingRecord

    @classmethod
    def made_of(cls, change: GpuChange) -> Self:
        return cls.from_attributes(change, address_certain=change.certain)


class MovedHostRecord(DocumentRecord, frozen=True):
    """A host whose GPUs change."""

    ref: Ref
    name: str
    free: FreeOfHostRecord
    gpus: list[MovedGpuRecord]

    @classmethod
    def made_of(cls, change: HostChange) -> Self:
        return cls.from_attributes(change.host, free=change, gpus=change.gpus)


class StayingVmRecord(DocumentRecord, frozen=True):
    """A VM that stays, and why."""

    vm: NamedRecord
    may_move: MoveMethod
    reasons: list[str]

    @classmethod
    def made_of(cls, stay: StayingVm) -> Self:
        return cls.from_attributes(stay, may_move=stay.way)


class UncountedGpuRecord(DocumentRecord, frozen=True):
    """A GPU that is not counted."""

    host: str
    address: Annotated[str, "PCI address"]
    because: str

    @classmethod
    def made_of(cls, gpu: UnclearGpu) -> Self:
        return cls.from_attributes(gpu, host=gpu.host.name)


@printed("defrag", by="gpuops defrag --dry-run")
class DefragDocument(VersionedSiteDocument, frozen=True):
    """The fewest moves of VMs that free the most GPUs."""

    profile: Annotated[str | None, "null = whole GPUs are counted"]
    free: FreeInAllRecord
    fragmented: Annotated[FragmentedRecord | None, "null = without --budget"]
    proven: Annotated[bool, "no other moves are sure to free more, where hosts choose GPUs as in `assumes`"]
    proven_unpinned: Annotated[bool, "the same of moves in which hosts choose all GPUs"]
    assumes: list[str]
    no_better_plan_up_to_moves: Annotated[int | None, "null = it is proven"]
    moves: Annotated[list[MoveRecord], "in their order"]
    frees_more_at: list[GainRecord]
    hosts: list[MovedHostRecord]
    vms_that_stay: list[StayingVmRecord]
    gpus_not_counted: list[UncountedGpuRecord]

    @classmethod
    def made_of(cls, defrag: Defragmentation) -> Self:
        return cls.from_attributes(
            defrag,
            defrag.inventory,
            read_at=defrag.inventory.taken_at,
            free=FreeInAllRecord(defrag.before, defrag.after, defrag.bound),
            fragmented=None if defrag.fragmented_mib is None else FragmentedRecord(*defrag.fragmented_mib),
            # a proven plan is the best within the limit of moves, so there is no lower bound to report
            no_better_plan_up_to_moves=None if defrag.proven else defrag.settled,
            frees_more_at=[GainRecord(moves, free) for moves, free in defrag.steps_of_gain],
            vms_that_stay=defrag.stays,
            gpus_not_counted=defrag.unclear,
        )


def _free_figures(defrag: Defragmentation) -> str:
    """Return the figures: `whole GPUs free: 0 now, 2 after 3 moves; no other moves free more for certain, ...`."""
    noun = "whole GPUs" if defrag.profile is None else f"slots of {defrag.profile}"
    now = f"{noun} free: {defrag.before} now"
    if not defrag.gpus:
        return "no GPU was found"
    if defrag.fragmented_mib is not None:
        return _fragmented_figures(defrag, *defrag.fragmented_mib)
    if not defrag.moves:
        return f"{now}; {_why_no_moves(defrag)}"
    return f"{now}, {defrag.after} after {count(len(defrag.moves), 'move')}; {_how_certain(defrag)}"


def _fragmented_figures(defrag: Defragmentation, before_mib: int, after_mib: int) -> str:
    """Return `free memory that the average VM cannot use: 98 GiB now, 20 GiB after 5 moves; whole GPUs free: 0 now, 2
    then`."""
    now = f"free memory that the average VM cannot use: {size(before_mib)} now"
    if not defrag.moves:
        return f"{now}; no moves were found that make more of it usable"
    then = f"{size(after_mib)} after {count(len(defrag.moves), 'move')}"
    certain = "; no other moves leave less for certain" if defrag.proven else ""
    return f"{now}, {then}{certain}; whole GPUs free: {defrag.before} now, {defrag.after} then"


def _why_no_moves(defrag: Defragmentation) -> str:
    if defrag.bound == defrag.before:
        return "no move of a VM that may move can free more"
    if defrag.proven:
        return "no moves were found that free more, and none are certain to"
    if defrag.proven_unpinned:
        return "no moves were found that free more, and no moves without pins are certain to"
    return "no moves were found that free more"


def _how_certain(defrag: Defragmentation) -> str:
    if defrag.proven:
        return "no other moves free more for certain, and no fewer free as much"
    if defrag.proven_unpinned:
        return (
            "no other moves without pins free more for certain, and no fewer free as much; "
            "not all moves with pins were tried"
        )
    tried = f"all plans of up to {count(defrag.settled, 'move')} were tried" if defrag.settled else ""
    if defrag.after == defrag.bound:
        return f"more cannot be free; whether fewer moves would do is not known{f' ({tried})' if tried else ''}"
    return f"more than {defrag.bound} cannot be free, whatever is moved{f'; {tried}' if tried else ''}"


def _move_table(moves: Sequence[PlannedMove]) -> TextTable:
    table = TextTable("", "VM", "from", "to", "GPU there", "how", "free then")
    for number, move in enumerate(moves, 1):
        table.add_row(
            str(number),
            move.vm.name,
            move.source.name,
            move.target.name,
            _gpus_there(move),
            f"{move.way.value}, pinned" if move.pins else move.way.value,
            str(move.free),
        )
    return table


def _gpus_there(move: PlannedMove) -> str:
    """Return the GPUs that the VM gets, or may get."""
    word = " and " if move.basis in (ArrivalBasis.BOUND, ArrivalBasis.ONLY, ArrivalBasis.POLICY) else " or "
    return word.join(map(str, move.gpus))


def _host_table(defrag: Defragmentation) -> TextTable:
    table = TextTable("GPU", "before", "after")
    for host in defrag.hosts:
        table.add_row(host.host.name, f"{host.before} free", f"{host.after} free")
        for gpu in host.gpus:
            or_alike = "" if gpu.certain else " or one like it"
            table.add_row(
                f"  {gpu.address}{or_alike}", *(_holding_text(holding, defrag) for holding in (gpu.before, gpu.after))
            )
    return table


def _holding_text(holding: GpuHolding, defrag: Defragmentation) -> str:
    """Return `3 vGPUs`, `2 to 3 vGPUs, room for 1` or `free`."""
    if not holding.at_most:
        return "free" if defrag.profile is None else f"empty, room for {holding.free}"
    vgpus = count(holding.at_most, "vGPU")
    some = vgpus if holding.at_least == holding.at_most else f"{holding.at_least} to {vgpus}"
    return some if defrag.profile is None else f"{some}, room for {holding.free}"


def _group_by_reason(stays: Sequence[StayingVm]) -> list[list[StayingVm]]:
    """Return the VMs that stay, grouped by their reasons: in a fleet, hundreds share the same ones."""
    groups: dict[tuple[MoveMethod, tuple[str, ...]], list[StayingVm]] = {}
    for stay in stays:
        groups.setdefault((stay.way, stay.reasons), []).append(stay)
    return list(groups.values())


def _stay_lines(stays: Sequence[StayingVm]) -> Iterator[Text]:
    names = some_names([stay.vm.name for stay in stays], _MOST_NAMED)
    first_reason, further = stays[0].reasons[0], len(stays[0].reasons) - 1
    reasons = "; ".join(stays[0].reasons) if further < _MOST_NAMED else f"{first_reason}; and {further} reasons more"
    verb = "moves only powered off" if stays[0].way is MoveMethod.POWERED_OFF else "stays"
    yield Text(f"{verb}: ", "yellow").append(f"{names}: {reasons}")


def _unclear_lines(defrag: Defragmentation) -> Iterator[Text]:
    """Yield one line for the GPUs of a host that are not counted for the same reason."""
    addresses_by_reason: dict[tuple[str, str], list[str]] = {}
    for gpu in defrag.unclear:
        addresses_by_reason.setdefault((gpu.host.name, gpu.because), []).append(str(gpu.address))
    for (host, because), addresses in addresses_by_reason.items():
        where = f"{host} {', '.join(addresses)}"
        yield Text("not counted: ", "yellow").append(f"{where}: {because}")


def _closing_line(defrag: Defragmentation) -> str:
    """Return `a plan only, nothing was changed`, and the option that would allow more moves."""
    cold = sum(stay.way is MoveMethod.POWERED_OFF for stay in defrag.stays)
    hint = f"; add --powered-off to include {count(cold, 'VM')} that can move powered off" if cold else ""
    return f"a plan only, nothing was changed{hint}"
