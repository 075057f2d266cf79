"""Placements as the versioned JSON document: the contract for programs. YAML is the same document."""

from __future__ import annotations

from gpuops.plan.place import Placements
from gpuops.plan.plan import Choice
from gpuops.plan.trial import Placed, Refusal
from gpuops.report.plan_json import SCHEMA_VERSION, Document, plain, rejection_document


def placements_document(found: Placements) -> Document:
    """Each request in the order of placing: the place it would get, or every reason why there is none."""
    return {
        "schema_version": SCHEMA_VERSION,
        "kind": "placement",
        "vcenter": found.before.vcenter,
        "read_at": found.before.taken_at.isoformat(),
        "exit_code": found.exit_code,
        "placed": len(found.placed),
        "refused": len(found.refused),
        "requests": [_answer(answer, found) for answer in found.answers],
    }


def _answer(answer: Placed | Refusal, found: Placements) -> Document:
    request = plain(answer.workload)
    name = request.pop("name")
    placed = isinstance(answer, Placed)
    return {
        "name": name,
        "request": request,
        "placed": placed,
        "place": _place(answer, found) if isinstance(answer, Placed) else None,
        "warnings": list(answer.warnings) if isinstance(answer, Placed) else [],
        "rejections": [] if isinstance(answer, Placed) else [rejection_document(one) for one in answer.rejections],
        "nearest": "" if isinstance(answer, Placed) else answer.nearest,
        "choices": [_choice(choice) for choice in answer.choices],
    }


def _place(answer: Placed, found: Placements) -> Document:
    placement = answer.placement
    host = placement.host
    cluster = found.before.clusters.get(host.cluster) if host.cluster else None
    return {
        "host": {"ref": host.ref, "name": host.name},
        "cluster": cluster.name if cluster else None,
        "numa_node": placement.numa_node,
        "gpus": [
            {"device": ordinal, "address": str(address), "pinned": ordinal in placement.pins}
            for ordinal, address in sorted(placement.seats.items())
        ],
    }


def _choice(choice: Choice) -> Document:
    return {
        "subject": choice.subject,
        "chosen": choice.chosen,
        "feasible": choice.feasible,
        "reason": choice.reason,
    }
