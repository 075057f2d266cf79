"""What `gpuops change abandon` prints, and what `status` says of hosts and VMs that a person gave up; text and JSON."""

from __future__ import annotations

from collections.abc import Iterable

from gpuops.plan.core.given_up import Abandonment, Missed
from gpuops.report.document import SCHEMA_VERSION, Document
from gpuops.report.layout import Shown, Text
from gpuops.report.text import visible


def missed_lines(missed: Iterable[Missed]) -> list[Text]:
    """A line for each that is not back, and what brings it back below it."""
    lines = []
    for each in missed:
        given = each.given
        lines.append(Text("given up ", "yellow").append(visible(f"{given.thing} {given.name} {each.since}")))
        lines.append(Text(f"         next: {visible(each.move)}", "dim"))
    return lines


def missed_documents(missed: Iterable[Missed]) -> list[Document]:
    """The same for programs."""
    return [
        {
            "kind": each.given.thing.value,
            "ref": each.given.ref,
            "uuid": each.given.uuid,
            "name": each.given.name,
            "of": each.given.of,
            "since": each.given.at.isoformat(),
            "now": each.now,
        }
        for each in missed
    ]


def abandonment_text(found: Abandonment) -> Shown:
    """What is given up, and what that means."""
    said = "was given up before" if found.already else "given up" if found.applied else "would be given up"
    return (
        *(Text(f"  {visible(line)}") for line in found.means),
        Text(f"{visible(found.name)}: {said}", "bold"),
        *(Text(f"next: {visible(line)}", "yellow") for line in found.left),
    )


def abandonment_document(found: Abandonment) -> Document:
    """The same for programs."""
    return {
        "schema_version": SCHEMA_VERSION,
        "kind": "abandon",
        "given_up": [
            {"kind": each.thing.value, "ref": each.ref, "uuid": each.uuid, "name": each.name, "of": each.of}
            for each in found.things
        ],
        "means": list(found.means),
        "next": list(found.left),
        "already": found.already,
        "applied": found.applied,
    }
