"""Prints which rules hold in a vCenter, and the commands that settle the rest: `gpuops bundle --first-contact` and
`gpuops doctor --assumptions`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Final

from gpuops.model.assumption import JudgedAssumption, SessionStep, Standing
from gpuops.model.vcenter.contact import Contact
from gpuops.model.vcenter.inventory import Inventory
from gpuops.report.document import SCHEMA_VERSION, Document
from gpuops.report.layout import Shown, Text, TextTable
from gpuops.report.text import count, visible

NAMED: Final = ("vm", "source", "host", "cluster")
"""Facts of evidence that are managed object ids."""


@dataclass(frozen=True, slots=True)
class JudgedContact:
    """One look at a vCenter, what it says of each row, and how the rest is settled."""

    contact: Contact
    rows: tuple[JudgedAssumption, ...]
    session: tuple[SessionStep, ...]
    """All steps."""
    setup: tuple[str, ...] = ()
    """The commands before them."""

    @property
    def needed_steps(self) -> Iterator[tuple[SessionStep, Sequence[str]]]:
        """The steps that settle a row which was not seen, with the ids of these rows; those of a connection broker
        if there is one. The first step is always one of them, because it prepares the VMs."""
        unseen = {judged.row.id for judged in self.rows if judged.standing is Standing.NOT_SEEN}
        if not self.contact.machines:
            unseen = {id for id in unseen if not id.startswith("broker-")}
        needed = [(step, [id for id in step.settles if id in unseen]) for step in self.session]
        if any(settled for _, settled in needed):
            first, *others = needed
            yield from (first, *((step, settled) for step, settled in others if settled))


def assumptions_text(judged: JudgedContact) -> Shown:
    """A table of all rules, with the confidence of each and what this vCenter shows of it."""
    table = TextTable("assumption", "confidence", "here", "rule")
    for row in judged.rows:
        table.add_row(row.row.id, row.row.confidence, row.standing, row.row.statement)
    return (table, *_unread(judged), Text("next: gpuops help assumptions says how to test a rule", "dim"))


def assumptions_document(judged: JudgedContact) -> Document:
    """The same for programs."""
    names = names_of(judged.contact.inventory)
    return {
        "schema_version": SCHEMA_VERSION,
        "kind": "assumptions",
        "vcenter": judged.contact.inventory.vcenter,
        "read_at": judged.contact.inventory.taken_at.isoformat(),
        "assumptions": [
            {
                **_judged_rule(row, names),
                "statement": row.row.statement,
                "source": row.row.source,
                "confidence": row.row.confidence.value,
                "deviation": row.row.deviation or None,
            }
            for row in judged.rows
        ],
        "unread": list(judged.contact.unread),
    }


def _judged_rule(judged: JudgedAssumption, names: Mapping[str, str]) -> Document:
    return {"id": judged.row.id, "standing": judged.standing.value, "evidence": evidence_text(judged, names) or None}


def evidence_text(judged: JudgedAssumption, names: Mapping[str, str]) -> str:
    """The evidence in words; empty = there is none. `names`: of VMs, hosts and clusters by managed object id."""
    facts = judged.evidence.facts if judged.evidence is not None else {}
    return visible(judged.sentence.format_map({key: names.get(str(fact), fact) for key, fact in facts.items()}))


def names_of(inventory: Inventory) -> dict[str, str]:
    """The names of VMs, hosts and clusters by their managed object ids."""
    kinds = (inventory.vms, inventory.hosts, inventory.clusters)
    return {ref: entity.name for kind in kinds for ref, entity in kind.items()}


def _unread(judged: JudgedContact) -> list[Text]:
    return [Text(visible(f"not read: {reason}"), "yellow") for reason in judged.contact.unread]


def contact_text(judged: JudgedContact) -> Shown:
    """A table of all rows with their evidence, and the commands of the session."""
    table = TextTable("assumption", "here", "evidence, or what it needs")
    names = names_of(judged.contact.inventory)
    for row in judged.rows:
        needs = f"needs {row.row.read or 'a change'}"
        table.add_row(row.row.id, row.standing, evidence_text(row, names) or needs)
    numbers = Counter(row.standing for row in judged.rows)
    total = ", ".join(f"{numbers[standing]} {standing}" for standing in Standing)
    return (table, Text(f"{count(len(judged.rows), 'rule')}: {total}", "bold"), *_unread(judged), *_session(judged))


def _session(judged: JudgedContact) -> Iterator[Text]:
    steps = list(judged.needed_steps)
    if not steps:
        return
    minutes = sum(step.minutes for step, _ in steps if not step.restarts)
    yield Text(f"To settle the rest in {minutes} min, on one spare host and with two test VMs; gpuops by the options")
    yield Text("of this call, govc by its own environment:")
    yield from map(Text, judged.setup)
    for step, settled in steps:
        restarts = f" with a restart of {step.restarts}," if step.restarts else ""
        yield Text(f"# {', '.join(settled) or 'the VMs of the session'}:{restarts} {count(step.minutes, 'minute')}")
        yield from map(Text, step.commands)
        if step.contradicted:
            yield Text(f"# contradicted if {step.contradicted}")


def contact_document(judged: JudgedContact) -> Document:
    """The same for programs."""
    names = names_of(judged.contact.inventory)
    return {
        "assumptions": [{**_judged_rule(row, names), "read": row.row.read or None} for row in judged.rows],
        "unread": list(judged.contact.unread),
        "session": [
            {**{key: part or None for key, part in asdict(step).items()}, "settles": list(settled)}
            for step, settled in judged.needed_steps
        ],
    }
