"""What a first contact read, and how it judges the table of assumptions, without a name."""

from __future__ import annotations

from collections import Counter
from typing import Any

from gpuops.model.assumption import JudgedAssumption, Observation
from gpuops.report.bundle.harmless import strays
from gpuops.report.bundle.pseudonyms import NameKind, Pseudonyms
from gpuops.report.bundle.world_vms import moment
from gpuops.report.first_contact import NAMED, JudgedContact


class ContactWriter:
    """Writes a first contact; the same name is the same pseudonym as in the rest of the bundle."""

    def __init__(self, names: Pseudonyms, words: frozenset[str]) -> None:
        """`words`: those of `api_words`."""
        self._names = names
        self._words = words

    def document(self, judged: JudgedContact) -> dict[str, Any]:
        """The rows of the table, and the answers that they are judged by."""
        contact = judged.contact
        states = Counter((machine.state, machine.in_maintenance, machine.managed) for machine in contact.machines)
        return {
            "assumptions": [self._row(row) for row in judged.rows],
            "tasks": [
                {
                    "moid": self._names.ref(task.ref),
                    "kind": task.kind,
                    "at": moment(task.queued),
                    "ran_s": task.ran_s,
                    "fault": task.fault,
                    "names_vgpu": task.names_vgpu,
                    "created_vm": None if task.created_vm is None else self._names.ref(task.created_vm),
                    "by_user": task.by_user,
                }
                for task in contact.tasks
            ],
            "events": [
                {
                    "moid": self._names.ref(event.ref),
                    "kind": event.kind,
                    "at": moment(event.at),
                    "host": None if event.host is None else self._names.ref(event.host),
                    "from": None if event.source is None else self._names.ref(event.source),
                }
                for event in contact.events
            ],
            "counters": [
                {"host": self._names.ref(host), "instances": [self._text(instance) for instance in instances]}
                for host, instances in contact.counter_instances.items()
            ],
            "reservations": [
                {"moid": self._names.ref(ref), "memory_mib": mib} for ref, mib in contact.reserved_mib.items()
            ],
            "machines": [
                {"state": self._text(state or ""), "in_maintenance": gated, "managed": managed, "machines": number}
                for (state, gated, managed), number in states.items()
            ],
            "unread": [self._names.of(NameKind.REASON, reason) for reason in contact.unread],
        }

    def _row(self, judged: JudgedAssumption) -> dict[str, Any]:
        evidence = judged.evidence
        return {
            "id": judged.row.id,
            "standing": judged.standing.value,
            "evidence": None if evidence is None else self._evidence(evidence),
        }

    def _evidence(self, evidence: Observation) -> dict[str, Any]:
        facts = [
            {
                "fact": name,
                "value": value
                if isinstance(value, int)
                else self._names.ref(value)
                if name in NAMED
                else self._text(value),
            }
            for name, value in evidence.facts.items()
        ]
        return {"text": evidence.sentence, "facts": facts}

    def _text(self, text: str) -> str:
        """A word of the API, a GPU or a number as it is; any other text hidden."""
        is_harmless = text in self._words or not any(strays(text))
        return text if is_harmless else self._names.of(NameKind.TEXT, text)


def api_words(judged: JudgedContact) -> frozenset[str]:
    """The words of the vSphere API in it: kinds of tasks and events, types of faults."""
    tasks, events = judged.contact.tasks, judged.contact.events
    return frozenset(
        {*(task.kind for task in tasks), *(task.fault for task in tasks), *(event.kind for event in events)}
    )
