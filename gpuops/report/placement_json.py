"""Placements as the versioned JSON document: the contract for programs. YAML is the same document."""

from __future__ import annotations

from gpuops.model.catalog import Catalog
from gpuops.plan.core.device_signature import signature
from gpuops.plan.core.plan import Choice
from gpuops.plan.placement.suspended_vms import Claim
from gpuops.plan.queue.batch.place_all import BatchResult
from gpuops.plan.queue.one_workload import Placed, Refusal
from gpuops.plan.queue.place import Placements
from gpuops.plan.queue.recipe import recipe
from gpuops.report.plan_json import SCHEMA_VERSION, Document, plain, rejection_document


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
        "warnings": list(found.warnings),
        "optimum": _optimum(found.optimum) if found.optimum else None,
    }


def _optimum(optimum: BatchResult) -> Document:
    return {
        "asked_mib": optimum.asked_mib,
        "placed_mib": optimum.placed_mib,
        "most_mib": optimum.most_mib,
        "placed_percent": optimum.placed_percent,
        "most_percent": optimum.most_percent,
        "by_solver": optimum.by_solver,
        "note": optimum.note,
    }


def _claim(claim: Claim) -> Document:
    return {
        "vm": {"ref": claim.vm.ref, "name": claim.vm.name},
        "host": {"ref": claim.host.ref, "name": claim.host.name},
        "gpus": [str(address) for address in claim.gpus],
        "lost": [rejection_document(one) for one in claim.lost],
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
        "rejections": [] if isinstance(answer, Placed) else [rejection_document(one) for one in answer.rejections],
        "nearest": "" if isinstance(answer, Placed) else answer.nearest,
        "after_moves": "" if isinstance(answer, Placed) else answer.moves,
        "choices": [_choice(choice) for choice in answer.choices],
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


def _choice(choice: Choice) -> Document:
    return {
        "subject": choice.subject,
        "chosen": choice.chosen,
        "feasible": choice.feasible,
        "reason": choice.reason,
    }
