"""What a first contact read, in a bundle: names, reasons and states that are no words of the API as pseudonyms."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Final

from gpuops.catalog.catalog_files import assumptions, contact_session
from gpuops.extras.bundle.bundle_scenario import api_words, contact_document
from gpuops.extras.bundle.harmless import Pseudonyms, strays
from gpuops.model.assumption import JudgedAssumption, Observation
from gpuops.model.desktops.broker import DesktopMachine
from gpuops.model.vcenter.inventory import Contact, Inventory, PastEvent, PastTask
from gpuops.report.first_contact_view import JudgedContact

MARK: Final = "Zq7x"
AT: Final = datetime(2026, 11, 20, 22, tzinfo=UTC)
REASON: Final = f"tasks: 10.1.2.3: no permission on {MARK}"


def judge_contact() -> JudgedContact:
    facts = {"host": f"{MARK}-esx", "vm": "vm-7", "expected": "0000:3b:00.0 at 4", "found": MARK}
    rows = tuple(
        JudgedAssumption(row, Observation(False, facts) if id == "gpu-choice" else None)
        for id, row in assumptions().items()
    )
    contact = Contact(
        Inventory("vc", "8.0.3.0", AT, {}, {}, {}, {}),
        tasks=(PastTask(f"{MARK}-vm", "VirtualMachine.clone", AT, 3.5, "InvalidState", created_vm="vm-8"),),
        events=(PastEvent("vm-7", "VmPoweredOnEvent", AT, "host-1", f"{MARK}-host"),),
        counter_instances={"host-1": ("0000:3b:00.0", f"{MARK} instance")},
        reserved_mib={"domain-c8": 4096},
        machines=(DesktopMachine(id=f"{MARK}-id", name=MARK, pool=None, state=f"{MARK} state"),),
        unread=(REASON,),
    )
    return JudgedContact(contact, rows, contact_session())


def test_a_first_contact_has_no_text_of_the_site() -> None:
    names, look = Pseudonyms(b"k" * 32), judge_contact()
    document = contact_document(look, names, api_words(look))
    assert MARK not in json.dumps(document)
    assert list(strays(document, "", api_words(look))) == []
    [row] = [row for row in document["assumptions"] if row["evidence"] is not None]
    [fact] = row["evidence"]["facts"]
    assert (row["id"], fact["vm"], fact["expected"]) == ("gpu-choice", "vm-7", "0000:3b:00.0 at 4")
    assert (document["tasks"][0]["kind"], document["tasks"][0]["queued"]) == ("VirtualMachine.clone", AT.isoformat())
    assert document["counters"][0]["instances"][0] == "0000:3b:00.0"
    assert [names.real_names[word] for word in document["unread"]] == [REASON]
