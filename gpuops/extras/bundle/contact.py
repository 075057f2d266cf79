"""A first contact, and its judgement of the table of assumptions, without names."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import asdict
from datetime import datetime
from typing import Any, Final

from gpuops.extras.bundle.harmless import strays
from gpuops.extras.bundle.pseudonyms import NameKind, Pseudonyms
from gpuops.extras.bundle.world import utc
from gpuops.report.first_contact import NAMED, JudgedContact

_REFS: Final = frozenset({"ref", "created_vm", *NAMED})
"""Keys whose values are managed object ids."""


def contact_document(judged: JudgedContact, names: Pseudonyms, words: Collection[str]) -> dict[str, Any]:
    """Return the rules with their standing, and the answers that support it. `words` are those of `api_words`."""
    contact = judged.contact
    states = Counter((machine.state or "", machine.in_maintenance, machine.managed) for machine in contact.machines)
    answers = {
        "assumptions": [
            {
                "id": row.row.id,
                "standing": row.standing.value,
                "evidence": row.evidence and {"text": row.sentence, "facts": [row.evidence.facts]},
            }
            for row in judged.rows
        ],
        "tasks": [asdict(task) for task in contact.tasks],
        "events": [asdict(event) for event in contact.events],
        "counters": [{"host": host, "instances": instances} for host, instances in contact.counter_instances.items()],
        "reservations": [{"cluster": ref, "memory_mib": mib} for ref, mib in contact.reserved_mib.items()],
        "machines": [
            dict(zip(("state", "in_maintenance", "managed", "machines"), (*kind, number), strict=True))
            for kind, number in states.items()
        ],
        "unread": contact.unread,
    }
    document: dict[str, Any] = _hide(answers, "", names, words)
    return document


def _hide(answer: Any, key: str, names: Pseudonyms, words: Collection[str]) -> Any:
    """Return an answer with each text in it hidden, unless it is a word of the API, a GPU or a number."""
    match answer:
        case Mapping():
            return {name: _hide(part, name, names, words) for name, part in answer.items()}
        case list() | tuple():
            return [_hide(part, key, names, words) for part in answer]
        case datetime():
            return utc(answer)
        case str() if key in _REFS:
            return names.ref(answer)
        case str() if answer not in words and any(strays(answer, ".")):
            return names.of(NameKind.REASON if key == "unread" else NameKind.TEXT, answer)
        case _:
            return answer


def api_words(judged: JudgedContact) -> frozenset[str]:
    """Return the words of the vSphere API in a first contact: kinds of tasks and events, types of faults."""
    tasks, events = judged.contact.tasks, judged.contact.events
    return frozenset(word for task in tasks for word in (task.kind, task.fault)) | {event.kind for event in events}
