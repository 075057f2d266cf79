"""Text and document of `gpuops place`: a table in the order of placing, and the reasons for refusals.

The document is the contract for programs. YAML is the same document.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Annotated, Any, Final, Self

from gpuops.model.devices.catalog import Catalog
from gpuops.model.devices.gpu import PciAddress
from gpuops.model.vcenter.host import NumaPolicy
from gpuops.model.workloads.workload import Vgpus, Workload
from gpuops.plan.core.passthru_devices import signature
from gpuops.plan.core.rejection import Rejection, some_names
from gpuops.plan.placement.suspended_vms import Claim, Return
from gpuops.plan.queue.one_workload import Placed, Refusal, Steering, recipe
from gpuops.plan.queue.place import Placements
from gpuops.report.document import DocumentRecord, Moment, NamedRecord, SiteDocument, printed
from gpuops.report.layout import Shown, Text, TextTable
from gpuops.report.plan_json import RejectionRecord, to_json_types
from gpuops.report.text import PINNED, count, size

_MOST_NAMED: Final = 4


def placements_text(placements: Placements, *, explain: bool = False) -> Shown:
    """Return the places, the refusals, warnings and one closing line; with `explain`, all choices first."""
    lines: list[Shown] = []
    if explain:
        lines += [line for answer in placements.answers for line in _explanation(answer)]
    if placements.placed:
        lines.append(_table(placements.placed))
    lines += [line for refusal in placements.refused for line in refused_lines(refusal)]
    lines += [_warning(text) for placed in placements.placed for text in placed.warnings]
    lines += map(_warning, placements.warnings)
    if any(answer.placement.pins for answer in placements.placed):
        lines.append(Text(PINNED, "dim"))
    lines += [*_claim_lines(placements.claims), *_later_return_lines(placements), *_keep_free_lines(placements)]
    lines += _optimum_lines(placements)
    return (*lines, Text(summary(placements), "bold"))


def summary(placements: Placements) -> str:
    """Return the closing line: `2 of 3 requests placed, if VMs of one host that ...; nothing was changed`."""
    placed_count, request_count = len(placements.placed), len(placements.answers)
    has_in_turn = any(answer.steering is Steering.LISTED_ORDER for answer in placements.placed)
    order = ", if the VMs of one host that start in turn are started in this order" if has_in_turn else ""
    return f"{placed_count} of {count(request_count, 'request')} placed{order}; nothing was changed"


def _optimum_lines(placements: Placements) -> Iterator[Text]:
    """Yield the placed share of the requested GPU memory and the highest possible one; nothing without `--optimize`."""
    optimum = placements.optimum
    if optimum is None:
        return
    if optimum.note:
        yield _warning(optimum.note)
    if optimum.placed_percent is None:
        return
    text = f"placed {optimum.placed_percent:.1f} % of the requested GPU memory"
    if optimum.most_percent is not None:
        text += f", at most {optimum.most_percent:.1f} % is possible"
    placed_in_turn = len(placements.placed) - optimum.by_solver
    if optimum.by_solver:
        text += f" (at once: {optimum.by_solver}, one after another: {placed_in_turn})"
    yield Text(text)
    if optimum.expects_starts:
        where = "mixed-size GPUs and MIG from Hopper on keep large vGPUs possible, MIG on Ampere takes the lowest slice"
        yield Text(f"in turn: assumes where hosts start vGPUs on GPUs that are empty now ({where})", "dim")


def _claim_lines(claims: Sequence[Claim]) -> Iterator[Text]:
    """Yield the suspended VMs whose GPUs are kept, and warnings for those that would find no GPU even now."""
    kept_names = [claim.vm.name for claim in claims if not claim.lost]
    if kept_names:
        vms = count(len(kept_names), "suspended VM")
        names = some_names(kept_names, _MOST_NAMED)
        text = f"kept for {vms}: the GPUs of {names}; --suspended ignore uses them"
        yield Text(text, "dim")
    for claim in claims:
        if claim.lost:
            yield _warning(f"{claim.vm.name} is suspended and would find no GPU on {claim.host.name} even now")


def _later_return_lines(placements: Placements) -> Iterator[Text]:
    """Yield the suspended VMs that come back after all requests have ended, and whose GPUs are therefore used."""
    if placements.later:
        names = [f"{vm.vm.name} ({vm.at.isoformat(timespec='minutes')})" for vm in placements.later]
        text = f"not kept: the GPUs of {some_names(names, _MOST_NAMED)}, which come back after all requests have ended"
        yield Text(text, "dim")


def _keep_free_lines(placements: Placements) -> Iterator[Text]:
    """Yield, for each profile of --keep-free, how many vGPUs stay free, and where."""
    for profile in placements.keep.profiles:
        places = [place for place in placements.kept if place.profile == profile.profile]
        places_text = ", ".join(f"{place.after} of {place.before} left in {place.where}" for place in places)
        yield Text(
            f"to be kept free: {profile.count} of {profile.profile}; {places_text or 'none was free before'}", "dim"
        )


def requirements_text(workload: Workload) -> str:
    """Return `2 x a100-3-20c, 16 vCPUs, 128 GiB`."""
    devices = _devices_text(workload)
    return f"{devices}, {count(workload.vcpus, 'vCPU')}, {size(workload.memory_mib)}"


def _devices_text(workload: Workload) -> str:
    if workload.device:
        return f"GPU {', '.join(map(str, workload.device))}"
    if workload.device_group is not None:
        return f"group {workload.device_group}"
    if workload.vgpus:
        return " + ".join(
            vgpus.profile if vgpus.count == 1 else f"{vgpus.count} x {vgpus.profile}" for vgpus in workload.vgpus
        )
    kind = f"whole {workload.model or 'GPU'}" + (f" labelled {workload.label}" if workload.label else "")
    return kind if workload.gpus == 1 else f"{workload.gpus} x {kind}"


def _table(placed: Sequence[Placed]) -> TextTable:
    rows = (
        (
            str(number),
            answer.workload.name,
            answer.placement.host.name,
            _expected_gpus(answer),
            ", ".join(map(str, answer.placement.local_nodes)) or "-",
            "in turn" if answer.steering is Steering.LISTED_ORDER else "any time",
            Text(requirements_text(answer.workload), "dim"),
        )
        for number, answer in enumerate(placed, 1)
    )
    return TextTable("", "request", "host", "GPUs", "NUMA node", "start", "needs", rows=rows)


def _expected_gpus(answer: Placed) -> str:
    """Return the expected GPUs, the number of devices on each, and whether they must be pinned."""
    seats = list(answer.placement.seats.values())
    pinned = set(answer.placement.pins.values())
    texts = []
    for address in sorted(set(seats)):
        times = f" ({seats.count(address)} times)" if seats.count(address) > 1 else ""
        texts.append(f"{address}{times}{' (pinned)' if address in pinned else ''}")
    return ", ".join(texts)


def refused_lines(refusal: Refusal) -> Iterator[Text]:
    """Yield why a request has no place, and the next steps."""
    name = refusal.workload.name
    yield Text("no place: ", "bold red").append(f"{name}: {requirements_text(refusal.workload)}")
    for line, hint in _reasons_with_subjects(refusal.rejections, refusal.workload.name):
        yield Text(f"          {line}")
        if hint:
            yield Text(f"          next: {hint}", "dim")
    if refusal.moves:
        yield Text(f"          next: {refusal.moves}", "green")
    if refusal.nearest:
        yield Text(f"          next: {refusal.nearest}", "green")


def _reasons_with_subjects(rejections: Iterable[Rejection], name: str) -> Iterator[tuple[str, str]]:
    """Yield one line for each reason with its hosts and GPUs, and the hint. Many hosts share a reason."""
    groups: dict[str, list[Rejection]] = {}
    for rejection in rejections:
        # The holder of a GPU differs for each GPU and would split the group; the document and --explain name it.
        rule, reason = rejection.rule, rejection.reason
        groups.setdefault(rule.partition("; held by ")[0] + reason[len(rule) :], []).append(rejection)
    for short_reason, rejections_alike in groups.items():
        reason = rejections_alike[0].reason if len(rejections_alike) == 1 else short_reason
        subjects = [rejection.subject for rejection in rejections_alike if rejection.subject != name]
        where = f"{some_names(subjects, _MOST_NAMED)}: " if subjects else ""
        yield f"{where}{reason}", rejections_alike[0].hint


def _explanation(answer: Placed | Refusal) -> Iterator[Text]:
    """Yield every host and GPU that was considered for one request, with the reason for or against it."""
    yield Text(f"{answer.workload.name}: {requirements_text(answer.workload)}", "bold")
    for choice in answer.choices:
        word, style = ("would do", "") if choice.feasible else ("not", "dim")
        if choice.chosen:
            word, style = "chosen", "green"
        yield Text(f"  {word:<8} {choice.subject}: {choice.reason}", style)


def _warning(text: str) -> Text:
    return Text(f"warning: {text}", "yellow")


class RequestRecord(DocumentRecord, frozen=True):
    """The requested VM."""

    vcpus: int
    memory_mib: int
    profile: str | None
    count: int
    gpus: int
    model: str | None
    numa: NumaPolicy
    cluster: str | None
    host: str | None
    affinity: str | None
    anti_affinity: str | None
    spread: str | None
    priority: int
    device: list[PciAddress]
    device_group: str | None
    label: str | None
    tag: list[str]
    more: list[Vgpus]
    until: Moment | None


class SeatRecord(DocumentRecord, frozen=True):
    """The GPU of one device of the VM."""

    device: int
    address: Annotated[str, "PCI address"]
    pinned: bool


class NewDeviceRecord(DocumentRecord, frozen=True):
    """A device of the VM."""

    device: str
    guest_numa_node: int | None


class RecipeRecord(DocumentRecord, frozen=True):
    """The settings to make the VM with."""

    devices: list[NewDeviceRecord]
    device_group: str | None
    memory_reservation_mib: int
    extra_config: dict[str, str]
    cores_per_numa_node: int | None


class PlaceRecord(DocumentRecord, frozen=True):
    """Where a VM would go, and how it is made so that it does."""

    host: NamedRecord
    cluster: str | None
    numa_node: int | None
    numa_nodes: Annotated[list[int], "those that the VM is bound to"]
    gpus: list[SeatRecord]
    steering: Steering
    vm: RecipeRecord


class LookedAtRecord(DocumentRecord, frozen=True):
    """A host or GPU that was considered."""

    subject: str
    chosen: bool
    feasible: bool
    reason: str


class AnswerRecord(DocumentRecord, frozen=True):
    """The place of one request, or every reason for its refusal."""

    name: str
    request: RequestRecord
    placed: bool
    place: PlaceRecord | None
    warnings: list[str]
    rejections: list[RejectionRecord]
    nearest: Annotated[str, "the nearest request that fits; empty if it is placed or no such request is known"]
    after_moves: Annotated[str, "the vMotions that would make room; empty if it is placed or no such moves are known"]
    choices: Annotated[list[LookedAtRecord], "every host and GPU that was considered"]


class ClaimRecord(DocumentRecord, frozen=True):
    """The place of a suspended VM."""

    vm: NamedRecord
    host: NamedRecord
    gpus: Annotated[list[str], "PCI addresses"]
    lost: Annotated[list[RejectionRecord], "why it has no place any more"]

    @classmethod
    def made_of(cls, claim: Claim) -> Self:
        return cls.from_attributes(claim, gpus=list(map(str, claim.gpus)))


class LaterReturnRecord(DocumentRecord, frozen=True):
    """A suspended VM, and when it comes back."""

    vm: NamedRecord
    returns_at: Moment

    @classmethod
    def made_of(cls, later: Return) -> Self:
        return cls.from_attributes(later, returns_at=later.at)


class KeptPlaceRecord(DocumentRecord, frozen=True):
    """How much of it is free at one place, before and after."""

    where: str
    free_before: int
    free_after: int


class KeptProfileRecord(DocumentRecord, frozen=True):
    """What --keep-free keeps of one profile."""

    profile: str
    count: int
    places: list[KeptPlaceRecord]


class OptimumRecord(DocumentRecord, frozen=True):
    """How much of the requested GPU memory is placed, and how much any plan could place."""

    asked_mib: int
    placed_mib: int
    most_mib: int | None
    placed_percent: float | None
    most_percent: float | None
    by_solver: Annotated[int, "requests that the solver placed"]
    note: Annotated[str, "why the solver's plan is not the answer; empty = it is"]
    expects_starts: bool


@printed("placement", by="gpuops place")
class PlacementDocument(SiteDocument, frozen=True):
    """Where VMs that do not exist yet would go."""

    exit_code: int
    placed: Annotated[int, "how many requests"]
    refused: Annotated[int, "how many requests"]
    requests: Annotated[list[AnswerRecord], "in the order of placing"]
    claims: Annotated[list[ClaimRecord], "suspended VMs whose place is kept for their return"]
    later: Annotated[list[LaterReturnRecord], "suspended VMs that come back after all requests have ended"]
    kept_free: list[KeptProfileRecord]
    warnings: list[str]
    optimum: Annotated[OptimumRecord | None, "with --optimize"]


def placements_document(placements: Placements, catalog: Catalog) -> PlacementDocument:
    """Return the document: each request in the order of placing, with its place or all reasons for the refusal."""
    kept_free = []
    for profile in placements.keep.profiles:
        counts = [place for place in placements.kept if place.profile == profile.profile]
        places = [KeptPlaceRecord(place.where, place.before, place.after) for place in counts]
        kept_free.append(KeptProfileRecord(profile.profile, profile.count, places))
    return PlacementDocument.from_attributes(
        placements,
        placements.before,
        read_at=placements.before.taken_at,
        placed=len(placements.placed),
        refused=len(placements.refused),
        requests=[_answer_record(answer, placements, catalog) for answer in placements.answers],
        kept_free=kept_free,
    )


def _answer_record(answer: Placed | Refusal, placements: Placements, catalog: Catalog) -> AnswerRecord:
    request = to_json_types(answer.workload)
    name = request.pop("name")
    if isinstance(answer, Placed):
        outcome: dict[str, Any] = {"place": _place_record(answer, placements, catalog), "warnings": answer.warnings}
        outcome |= {"rejections": [], "nearest": "", "after_moves": ""}
    else:
        outcome = {"place": None, "warnings": [], "after_moves": answer.moves}
    return AnswerRecord.from_attributes(
        answer, name=name, request=RequestRecord(**request), placed=isinstance(answer, Placed), **outcome
    )


def _place_record(answer: Placed, placements: Placements, catalog: Catalog) -> PlaceRecord:
    placement = answer.placement
    cluster = placements.before.clusters.get(placement.host.cluster) if placement.host.cluster else None
    # pairs: the ordinal of a device of the VM, and the address of its GPU
    seats = sorted(placement.seats.items())
    return PlaceRecord.from_attributes(
        placement,
        cluster=cluster.name if cluster else None,
        numa_nodes=placement.local_nodes,
        gpus=[SeatRecord(ordinal, str(address), ordinal in placement.pins) for ordinal, address in seats],
        steering=answer.steering,
        vm=_vm_settings(answer, catalog),
    )


def _vm_settings(answer: Placed, catalog: Catalog) -> RecipeRecord:
    """Return the settings to make the VM with, so that it gets its place."""
    vm_recipe = recipe(answer, catalog)
    return RecipeRecord.from_attributes(
        vm_recipe,
        devices=[NewDeviceRecord(signature(device), getattr(device, "numa_node", None)) for device in vm_recipe.add],
        memory_reservation_mib=answer.workload.memory_mib,
        extra_config=dict(sorted(vm_recipe.extra_config.items())),
    )
