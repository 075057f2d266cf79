"""What `gpuops rotate adopt` prints, as text and JSON."""

from __future__ import annotations

from gpuops.plan.rotation.returns.adoption import Adoption
from gpuops.report.document import SCHEMA_VERSION, Document
from gpuops.report.layout import Shown, Text
from gpuops.report.text import count, visible


def adoption_text(adoption: Adoption) -> Shown:
    """Which VMs this vCenter returns from then on, and which stay with the other one."""
    deed = "adopted" if adoption.applied else "would be adopted"
    kept = f"  stay with that vCenter, because they are not here: {', '.join(adoption.not_here)}"
    return (
        *(Text(f"  {visible(name)}") for name in adoption.adopted),
        *((Text(visible(kept)),) if adoption.not_here else ()),
        Text(f"{count(len(adoption.adopted), 'VM')} of vCenter {visible(adoption.from_vcenter)}: {deed}", "bold"),
        *((Text("next: gpuops rotate day brings them back", "yellow"),) if adoption.applied else ()),
    )


def adoption_document(adoption: Adoption) -> Document:
    """The same for programs."""
    return {
        "schema_version": SCHEMA_VERSION,
        "kind": "rotate-adopt",
        "from": adoption.from_vcenter,
        "to": adoption.to_vcenter,
        "adopted": list(adoption.adopted),
        "not_here": list(adoption.not_here),
        "applied": adoption.applied,
    }
