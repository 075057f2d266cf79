"""Shows which rules of vSphere and NVIDIA, the assumptions of gpuops, hold in a vCenter, and how to test the others.

`gpuops bundle --first-contact` and `gpuops doctor --assumptions` print it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Final, Self, TypeVar

from gpuops.model.assumption import Confidence, JudgedAssumption, SessionStep, Standing
from gpuops.model.vcenter.inventory import Contact, Inventory
from gpuops.report.document import DocumentRecord, SiteDocument, printed
from gpuops.report.layout import Column, Shown, Text, table_of
from gpuops.report.text import count

Record = TypeVar("Record", bound=DocumentRecord)
NAMED: Final = ("vm", "source", "host", "cluster")
"""Facts of evidence that are managed object ids."""


@dataclass(frozen=True, slots=True)
class JudgedContact:
    """One reading of a vCenter, the judgement of each rule by it, and the session of steps that test other rules."""

    contact: Contact
    rows: tuple[JudgedAssumption, ...]
    session: tuple[SessionStep, ...]
    """All steps, also those that this vCenter does not need."""
    setup: tuple[str, ...] = ()
    """The commands to run before the steps."""

    @property
    def needed_steps(self) -> Iterator[tuple[SessionStep, Sequence[str]]]:
        """Yield the steps that test a rule which was not seen, with the ids of these rules; none if all were seen.

        Steps for a connection broker are left out if there is no broker. The first step prepares the VMs, so it is
        included if any other step is.
        """
        unseen = {judged.row.id for judged in self.rows if judged.standing is Standing.NOT_SEEN}
        if not self.contact.machines:
            unseen = {id for id in unseen if not id.startswith("broker-")}
        steps = [(step, [id for id in step.settles if id in unseen]) for step in self.session]
        if any(tested_ids for _, tested_ids in steps):
            yield steps[0]
            yield from ((step, tested_ids) for step, tested_ids in steps[1:] if tested_ids)


def assumptions_text(judged: JudgedContact) -> Shown:
    """Return a table of all rules, with the confidence of each and what this vCenter shows of it."""
    table = table_of(
        judged.rows,
        Column("assumption", lambda row: row.row.id),
        Column("confidence", lambda row: row.row.confidence),
        Column("here", lambda row: row.standing),
        Column("rule", lambda row: row.row.statement),
    )
    return (table, *_unread_lines(judged), Text("next: gpuops help troubleshooting explains how to test a rule", "dim"))


class AssumptionRecord(DocumentRecord, frozen=True):
    """A rule by which gpuops plans."""

    id: Annotated[str, "with `gpuops sim serve --deviate` of the simulated vCenter"]
    standing: Annotated[Standing, "by what was read of this vCenter"]
    evidence: Annotated[str | None, "the first observation that contradicts or confirms it"]
    statement: str
    source: Annotated[str, "`none` without a source"]
    confidence: Confidence
    deviation: Annotated[str | None, "what the simulated vCenter can do instead"]


@printed("assumptions", by="gpuops doctor --assumptions")
class AssumptionsDocument(SiteDocument, frozen=True):
    """The rules of vSphere and NVIDIA that gpuops goes by, and how sure each is."""

    assumptions: list[AssumptionRecord]
    unread: Annotated[list[str], "what could not be read, with the reason"]

    @classmethod
    def made_of(cls, judged: JudgedContact) -> Self:
        inventory, rows = judged.contact.inventory, _records(AssumptionRecord, judged)
        return cls.from_attributes(judged.contact, inventory, read_at=inventory.taken_at, assumptions=rows)


def _records(kind: type[Record], judged: JudgedContact) -> list[Record]:
    names = names_of(judged.contact.inventory)
    return [kind.from_attributes(row, row.row, evidence=evidence_text(row, names) or None) for row in judged.rows]


def evidence_text(judged: JudgedAssumption, names: Mapping[str, str]) -> str:
    """Return the evidence in words, or an empty text. `names` has the names of VMs, hosts and clusters by managed
    object id."""
    facts = judged.evidence.facts if judged.evidence is not None else {}
    return judged.sentence.format_map({key: names.get(str(fact), fact) for key, fact in facts.items()})


def names_of(inventory: Inventory) -> dict[str, str]:
    """Return the names of VMs, hosts and clusters by their managed object ids."""
    kinds = (inventory.vms, inventory.hosts, inventory.clusters)
    return {ref: entity.name for kind in kinds for ref, entity in kind.items()}


def _unread_lines(judged: JudgedContact) -> list[Text]:
    return [Text(f"not read: {reason}", "yellow") for reason in judged.contact.unread]


def contact_text(judged: JudgedContact) -> Shown:
    """Return a table of all rules with their evidence, and the commands of the session."""
    names = names_of(judged.contact.inventory)
    table = table_of(
        judged.rows,
        Column("assumption", lambda row: row.row.id),
        Column("here", lambda row: row.standing),
        Column(
            "evidence, or what it needs", lambda row: evidence_text(row, names) or f"needs {row.row.read or 'a change'}"
        ),
    )
    numbers = Counter(row.standing for row in judged.rows)
    total = ", ".join(f"{numbers[standing]} {standing}" for standing in Standing)
    return (
        table,
        Text(f"{count(len(judged.rows), 'rule')}: {total}", "bold"),
        *_unread_lines(judged),
        *_session_lines(judged),
    )


def _session_lines(judged: JudgedContact) -> Iterator[Text]:
    """Yield the commands that test the rules that were not seen; nothing if all were seen."""
    steps = list(judged.needed_steps)
    if not steps:
        return
    # without restarts: how long these take depends on the host
    minutes = sum(step.minutes for step, _ in steps if not step.restarts)
    yield Text(f"Run these commands to test the other rules in {minutes} min, with one spare host and two test VMs.")
    yield Text("gpuops needs the connection options of this call, govc its own environment variables:")
    yield from map(Text, judged.setup)
    for step, tested_ids in steps:
        restarts = f" with a restart of {step.restarts}," if step.restarts else ""
        yield Text(f"# {', '.join(tested_ids) or 'the VMs of the session'}:{restarts} {count(step.minutes, 'minute')}")
        yield from map(Text, step.commands)
        if step.contradicted:
            yield Text(f"# contradicted if {step.contradicted}")


class SeenAssumptionRecord(DocumentRecord, frozen=True):
    """A rule of the table of assumptions."""

    id: str
    standing: Standing
    evidence: Annotated[str | None, "the first observation that contradicts or confirms it"]
    read: Annotated[str | None, "the state in which reading shows it; null = only a change shows it"]


class ContactStepRecord(DocumentRecord, frozen=True):
    """A step of the session that settles what reading does not show."""

    minutes: int
    settles: Annotated[list[str], "ids of rules that were not seen"]
    commands: list[str]
    contradicted: Annotated[
        str | None, "what of the output contradicts the rules; null = the next first contact judges them"
    ]
    restarts: Annotated[str | None, "what the step restarts"]


class FirstContactRecord(DocumentRecord, frozen=True):
    """Which rules of gpuops hold in this vCenter, as far as reading shows it."""

    assumptions: list[SeenAssumptionRecord]
    unread: Annotated[list[str], "what could not be read, with the reason"]
    session: Annotated[list[ContactStepRecord], "the commands that settle the rest"]

    @classmethod
    def made_of(cls, judged: JudgedContact) -> Self:
        rows = _records(SeenAssumptionRecord, judged)
        session = [ContactStepRecord.from_attributes(step, settles=settled) for step, settled in judged.needed_steps]
        return cls.from_attributes(judged.contact, assumptions=rows, session=session)
