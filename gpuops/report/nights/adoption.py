"""Text and document of `gpuops rotate adopt`."""

from __future__ import annotations

from typing import Annotated

from msgspec import field

from gpuops.plan.rotation.returns.foreign_nights import Adoption
from gpuops.report.document import PrintedDocument, printed
from gpuops.report.layout import Shown, Text
from gpuops.report.text import count


def adoption_text(adoption: Adoption) -> Shown:
    """Return which VMs this vCenter returns from now on, and which stay with the other one."""
    outcome_word = "adopted" if adoption.applied else "would be adopted"
    stay_line = f"  stay with that vCenter, because they are not here: {', '.join(adoption.not_here)}"
    return (
        *(Text(f"  {name}") for name in adoption.adopted),
        *((Text(stay_line),) if adoption.not_here else ()),
        Text(f"{count(len(adoption.adopted), 'VM')} of vCenter {adoption.from_vcenter}: {outcome_word}", "bold"),
        *((Text("next: gpuops rotate day brings them back", "yellow"),) if adoption.applied else ()),
    )


@printed("rotate-adopt", by="gpuops rotate adopt")
class RotateAdoptDocument(PrintedDocument, frozen=True):
    """Which VMs of nights of another vCenter this vCenter brings back."""

    from_: Annotated[str, "instance uuid of the vCenter whose nights took them"] = field(name="from")
    to: Annotated[str, "instance uuid of this vCenter"]
    adopted: Annotated[list[str], "names of the VMs"]
    not_here: Annotated[list[str], "names of VMs that this vCenter does not have"]
    applied: Annotated[bool, "false of a dry run"]


def adoption_document(adoption: Adoption) -> RotateAdoptDocument:
    """Return the adoption as a document."""
    return RotateAdoptDocument.from_attributes(adoption, from_=adoption.from_vcenter, to=adoption.to_vcenter)
