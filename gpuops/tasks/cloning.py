"""Cloning: a task that makes a VM from a template, if there is none of its name yet."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from gpuops.tasks.answer import Answer, reasons_line
from gpuops.tasks.connection import Said, open_site

if TYPE_CHECKING:
    from gpuops.model.inventory import Inventory
    from gpuops.plan.clone import NewClone
    from gpuops.report.plan_json import Document


def vm_clone(said: Said, options: Mapping[str, Any], *, apply: bool) -> Answer:
    """`options` are the fields of `Clone`, with `memory` as people write it; None = not given. Raises GpuopsError."""
    from gpuops.api import clone
    from gpuops.model.workload import memory_mib
    from gpuops.plan.clone import Clone
    from gpuops.report.vm_state import vm_state

    given = {name: value for name, value in options.items() if value is not None}
    memory = given.pop("memory", None)
    request = Clone(**given, memory_mib=memory_mib(memory) if memory is not None else None)
    site, warnings = open_site(said)
    with site:
        found, seen = clone(request, site, apply=apply)
    reasons = [each.line for each in found.rejections]
    made = found.new is not None and not reasons
    result: Document = {
        "changed": made,
        "diff": [_difference(found.new, seen)] if found.new is not None else [],
        "because": [] if found.new is not None or found.there is None else [f"{found.there.name} is there already"],
        "reasons": reasons,
        "vm": vm_state(found.there, seen) if found.there is not None else None,
    }
    message = reasons_line(reasons, "refused, nothing changed") if reasons else ""
    return Answer(result, 3 if reasons else 0, message, tuple(warnings))


def _difference(new: NewClone, seen: Inventory) -> Document:
    """What of it can be told before it is there."""
    after = {
        "name": new.name,
        "template": seen.vm(new.source).name,
        "host": seen.hosts[new.host].name,
        "power": "poweredOff",
        "vcpus": new.vcpus,
        "memory_mib": new.memory_mib,
    }
    return {"before_header": new.name, "after_header": new.name, "before": {}, "after": after}
