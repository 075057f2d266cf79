"""What `gpuops place` prints: a table in the order of placing, why the rest has no place; and the JSON document.

The document is the contract for programs. YAML is the same document.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from gpuops.model.devices.catalog import Catalog
from gpuops.model.workloads.workload import Workload
from gpuops.plan.core.device_signature import signature
from gpuops.plan.core.plan import Choice, Rejection
from gpuops.plan.placement.suspended_vms import Claim
from gpuops.plan.queue.batch.place_all import BatchResult
from gpuops.plan.queue.one_workload import Placed, Refusal, Steering, recipe
from gpuops.plan.queue.place import Placements
from gpuops.report.document import SCHEMA_VERSION, Document
from gpuops.report.layout import Shown, Text, TextTable
from gpuops.report.plan_json import RejectionRecord, plain
from gpuops.report.text import PINNED, count, size, visible

_FEW: Final = 4


def placements_text(found: Placements, *, explain: bool = False) -> Shown:
    """Why each went where it did if that was asked, the places, the refusals, warnings, and one closing line."""
    lines: list[Shown] = []
    if explain:
        lines += [line for answer in found.answers for line in _explained(answer)]
    if found.placed:
        lines.append(_table(found.placed))
    lines += [line for refusal in found.refused for line in refused_lines(refusal)]
    lines += [_warning(text) for placed in found.placed for text in placed.warnings]
    lines += [*map(_warning, found.warnings), *_pins(found.placed), *_claims(found.claims), *_later(found)]
    lines += _kept_text(found)
    lines += _optimum_text(found)
    return (*lines, Text(summary(found), "bold"))


def summary(found: Placements) -> str:
    """`2 of 3 requests placed, if those in turn of one host are started in this order; nothing was changed`."""
    done, total = len(found.placed), len(found.answers)
    in_turn = [each for each in found.placed if each.steering is Steering.LISTED_ORDER]
    order = ", if those in turn of one host are started in this order" if in_turn else ""
    return f"{done} of {count(total, 'request')} placed{order}; nothing was changed"


def _optimum_text(found: Placements) -> Iterator[Text]:
    """How much of the GPU memory is placed, how much more is possible, and by whom."""
    optimum = found.optimum
    if optimum is None:
        return
    if optimum.note:
        yield _warning(optimum.note)
    if optimum.placed_percent is None:
        return
    text = f"placed {optimum.placed_percent:.1f} % of the GPU memory asked for"
    if optimum.most_percent is not None:
        text += f", at most {optimum.most_percent:.1f} % is possible"
    rest = len(found.placed) - optimum.by_solver
    if optimum.by_solver:
        text += f" (at once: {optimum.by_solver}, one after another: {rest})"
    yield Text(text)
    if optimum.expects_starts:
        where = "mixed-size GPUs and MIG from Hopper on keep large vGPUs possible, MIG on Ampere takes the lowest slice"
        yield Text(f"in turn: this counts on where hosts let vGPUs start on GPUs that are empty now ({where})", "dim")


def _pins(placed: Sequence[Placed]) -> Iterator[Text]:
    """What it costs to bind a vGPU to a GPU."""
    if any(each.placement.pins for each in placed):
        yield Text(PINNED, "dim")


def _claims(claims: Sequence[Claim]) -> Iterator[Text]:
    """Whose GPUs are not given away, and who has none to come back to anyway."""
    kept = [claim.vm.name for claim in claims if not claim.lost]
    if kept:
        text = f"kept for {count(len(kept), 'suspended VM')}: the GPUs of {visible(_some(kept))} (--suspended ignore)"
        yield Text(text, "dim")
    for claim in claims:
        if claim.lost:
            yield _warning(f"{claim.vm.name} is suspended and would find no GPU on {claim.host.name} even now")


def _later(found: Placements) -> Iterator[Text]:
    """Whose GPUs are given away until they come back."""
    if found.later:
        names = [f"{each.vm.name} ({each.at.isoformat(timespec='minutes')})" for each in found.later]
        yield Text(f"not kept, they come back when all of this is gone: the GPUs of {visible(_some(names))}", "dim")


def _kept_text(found: Placements) -> Iterator[Text]:
    """How many vGPUs of each profile that is kept free are left, and where."""
    for kept in found.keep.profiles:
        places = [each for each in found.kept if each.profile == kept.profile]
        left = ", ".join(f"{each.after} of {each.before} left in {visible(each.where)}" for each in places)
        yield Text(f"to be kept free: {kept.count} of {kept.profile}; {left or 'none of it was free'}", "dim")


def needs(workload: Workload) -> str:
    """`2 x a100-3-20c, 16 vCPUs, 128 GiB`."""
    what = _what(workload)
    return f"{what}, {count(workload.vcpus, 'vCPU')}, {size(workload.memory_mib)}"


def _what(workload: Workload) -> str:
    if workload.device:
        return f"GPU {', '.join(map(str, workload.device))}"
    if workload.device_group is not None:
        return f"group {workload.device_group}"
    if workload.vgpus:
        return " + ".join(
            each.profile if each.count == 1 else f"{each.count} x {each.profile}" for each in workload.vgpus
        )
    kind = f"whole {workload.model or 'GPU'}" + (f" labelled {workload.label}" if workload.label else "")
    return kind if workload.gpus == 1 else f"{workload.gpus} x {kind}"


def _table(placed: Sequence[Placed]) -> TextTable:
    table = TextTable("", "request", "host", "GPUs", "NUMA node", "start", "needs")
    for number, answer in enumerate(placed, 1):
        nodes = answer.placement.bound_to
        table.add_row(
            str(number),
            visible(answer.workload.name),
            visible(answer.placement.host.name),
            _gpus(answer),
            ", ".join(map(str, nodes)) or "-",
            "in turn" if answer.steering is Steering.LISTED_ORDER else "any time",
            Text(visible(needs(answer.workload)), "dim"),
        )
    return table


def _gpus(answer: Placed) -> str:
    """The GPUs it is expected on, with how many of its devices each, and which of them must be pinned."""
    seats = list(answer.placement.seats.values())
    pinned = set(answer.placement.pins.values())
    texts = []
    for address in sorted(set(seats)):
        times = seats.count(address)
        texts.append(f"{address}{f' ({times} times)' if times > 1 else ''}{' (pinned)' if address in pinned else ''}")
    return ", ".join(texts)


def refused_lines(refusal: Refusal) -> Iterator[Text]:
    """Why it has no place, and what to do next."""
    name = visible(refusal.workload.name)
    yield Text("no place: ", "bold red").append(f"{name}: {visible(needs(refusal.workload))}")
    for line, hint in _grouped(refusal.rejections, refusal.workload.name):
        yield Text(f"          {visible(line)}")
        if hint:
            yield Text(f"          next: {visible(hint)}", "dim")
    if refusal.moves:
        yield Text(f"          next: {visible(refusal.moves)}", "green")
    if refusal.nearest:
        yield Text(f"          next: {visible(refusal.nearest)}", "green")


def _grouped(rejections: Iterable[Rejection], name: str) -> Iterator[tuple[str, str]]:
    """One line per reason with the hosts and GPUs it holds for: a fleet says the same thing hundreds of times."""
    groups: dict[str, list[Rejection]] = {}
    for rejection in rejections:
        # Who holds each of many GPUs is in the document and in --explain: here it would tell them apart.
        rule, reason = rejection.rule, rejection.reason
        groups.setdefault(rule.partition("; held by ")[0] + reason[len(rule) :], []).append(rejection)
    for short_reason, alike in groups.items():
        reason = alike[0].reason if len(alike) == 1 else short_reason
        subjects = [rejection.subject for rejection in alike if rejection.subject != name]
        where = f"{_some(subjects)}: " if subjects else ""
        yield f"{where}{reason}", alike[0].hint


def _some(subjects: Sequence[str]) -> str:
    more = len(subjects) - _FEW
    return ", ".join(subjects[:_FEW]) + (f" and {more} more" if more > 0 else "")


def _explained(answer: Placed | Refusal) -> Iterator[Text]:
    yield Text(f"{visible(answer.workload.name)}: {visible(needs(answer.workload))}", "bold")
    yield from map(_choice_text, answer.choices)


def _choice_text(choice: Choice) -> Text:
    word, style = ("would do", "") if choice.feasible else ("not", "dim")
    if choice.chosen:
        word, style = "chosen", "green"
    return Text(f"  {word:<8} {visible(choice.subject)}: {visible(choice.reason)}", style)


def _warning(text: str) -> Text:
    return Text(f"warning: {visible(text)}", "yellow")


def placements_document(found: Placements, catalog: Catalog) -> Document:
    """Each request in the order of placing: the place it would get, or every reason why there is none."""
    return {
        "schema_version": SCHEMA_VERSION,
        "kind": "placement",
        "vcenter": found.before.vcenter,
        "read_at": found.before.taken_at.isoformat(),
        "exit_code": found.exit_code,
        "placed": len(found.placed),
        "refused": len(found.refused),
        "requests": [_answer(answer, found, catalog) for answer in found.answers],
        "claims": [_claim(claim) for claim in found.claims],
        "later": [
            {"vm": {"ref": each.vm.ref, "name": each.vm.name}, "returns_at": each.at.isoformat()}
            for each in found.later
        ],
        "kept_free": [
            {
                "profile": kept.profile,
                "count": kept.count,
                "places": [
                    {"where": each.where, "free_before": each.before, "free_after": each.after}
                    for each in found.kept
                    if each.profile == kept.profile
                ],
            }
            for kept in found.keep.profiles
        ],
        "warnings": list(found.warnings),
        "optimum": _optimum_document(found.optimum) if found.optimum else None,
    }


def _optimum_document(optimum: BatchResult) -> Document:
    return {
        "asked_mib": optimum.asked_mib,
        "placed_mib": optimum.placed_mib,
        "most_mib": optimum.most_mib,
        "placed_percent": optimum.placed_percent,
        "most_percent": optimum.most_percent,
        "by_solver": optimum.by_solver,
        "note": optimum.note,
        "expects_starts": optimum.expects_starts,
    }


def _claim(claim: Claim) -> Document:
    return {
        "vm": {"ref": claim.vm.ref, "name": claim.vm.name},
        "host": {"ref": claim.host.ref, "name": claim.host.name},
        "gpus": [str(address) for address in claim.gpus],
        "lost": [RejectionRecord.made_of(one) for one in claim.lost],
    }


def _answer(answer: Placed | Refusal, found: Placements, catalog: Catalog) -> Document:
    request = plain(answer.workload)
    name = request.pop("name")
    placed = isinstance(answer, Placed)
    return {
        "name": name,
        "request": request,
        "placed": placed,
        "place": _place(answer, found, catalog) if isinstance(answer, Placed) else None,
        "warnings": list(answer.warnings) if isinstance(answer, Placed) else [],
        "rejections": [] if isinstance(answer, Placed) else [RejectionRecord.made_of(one) for one in answer.rejections],
        "nearest": "" if isinstance(answer, Placed) else answer.nearest,
        "after_moves": "" if isinstance(answer, Placed) else answer.moves,
        "choices": [_choice_document(choice) for choice in answer.choices],
    }


def _place(answer: Placed, found: Placements, catalog: Catalog) -> Document:
    placement = answer.placement
    host = placement.host
    cluster = found.before.clusters.get(host.cluster) if host.cluster else None
    return {
        "host": {"ref": host.ref, "name": host.name},
        "cluster": cluster.name if cluster else None,
        "numa_node": placement.numa_node,
        "numa_nodes": list(placement.bound_to),
        "gpus": [
            {"device": ordinal, "address": str(address), "pinned": ordinal in placement.pins}
            for ordinal, address in sorted(placement.seats.items())
        ],
        "steering": answer.steering.value,
        "vm": _vm(answer, catalog),
    }


def _vm(answer: Placed, catalog: Catalog) -> Document:
    """How the VM is made, so that its place comes true."""
    made = recipe(answer, catalog)
    return {
        "devices": [
            {"device": signature(device), "guest_numa_node": getattr(device, "numa_node", None)} for device in made.add
        ],
        "device_group": made.device_group,
        "memory_reservation_mib": answer.workload.memory_mib,
        "extra_config": dict(sorted(made.extra_config.items())),
        "cores_per_numa_node": made.cores_per_numa_node,
    }


def _choice_document(choice: Choice) -> Document:
    return {
        "subject": choice.subject,
        "chosen": choice.chosen,
        "feasible": choice.feasible,
        "reason": choice.reason,
    }
