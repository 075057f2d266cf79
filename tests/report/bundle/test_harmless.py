"""The last check of a bundle: every text is of a closed set of kinds or a pseudonym, or no bundle is written."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any, Final

import pytest

from gpuops.catalog.catalog_files import assumptions, contact_session
from gpuops.errors import Refused
from gpuops.extras.bundle.archive import bundle
from gpuops.extras.bundle.bundle_scenario import api_words, contact_document
from gpuops.extras.bundle.harmless import NameKind, Pseudonyms, is_about_gpus, strays
from gpuops.model.assumption import JudgedAssumption, Observation
from gpuops.model.desktops.broker import DesktopMachine
from gpuops.model.vcenter.inventory import Contact, Inventory, PastEvent, PastTask
from gpuops.report.first_contact_view import JudgedContact

WRITTEN = datetime(2026, 11, 27, 9, tzinfo=UTC)

HARMLESS = [
    "vm-0123456789ab",
    "folder-0123456789ab/folder-0123456789ab",
    "vm-42",
    "domain-c7",
    "0000:3b:00.0",
    "nvidia_a40-8q",
    "a100",
    "Nvidia:2@grid_a100d-80c%NVLink",
    "NVIDIA A40",
    "2026-11-27T09:00:00+00:00",
    "0,1,2",
    "-1",
    "FPGA 8086:09c4",
    "10de:20b5",
    "TRUE",
    "550.90.05-1OEM.800.1.0.20613240",
    "0000:3b:00.0 at 0, 4, 0000:af:00.0 at 0",
    "",
    None,
    7,
    1.5,
    True,
]
STRAYS = [
    "ml-07",
    "vm-0123456789ab and more",
    "vm-0123456789AB",
    "esx-01.example.com",
    "10.66.77.88",
    "2026-11-27T09:00:00+01:00",
    "cafe",
    "FPGA secret",
    "secret 8086:09c4",
    "8.0.3.0",
    "fd00::1",
    "00:50:56:aa:bb:cc",
    "564d1234-aaaa-bbbb-cccc-0123456789ab",
    "nvidia_a40-8q of team blue",
    "nvidia_hunter2-8q",
    "Nvidia:2@secret%NVLink",
    "/etc/passwd",
    "a\nb",
    "0000:3b:00.0\n",
    "12345678901234567890",
    "poweredOn!",
    "NVIDIA secret",
    b"bytes",
]


@pytest.mark.parametrize("value", HARMLESS)
def test_what_tells_nothing(value: Any) -> None:
    assert list(strays({"name": [value]})) == []


@pytest.mark.parametrize("value", STRAYS)
def test_what_is_stopped(value: Any) -> None:
    assert list(strays({"vms": [{"name": value}]})) == [".vms.0.name"]


def test_a_release_stands_under_its_keys_alone() -> None:
    assert list(strays({"api_version": "8.0.3.0", "name": "8.0.3.0"})) == [".name"]


def test_ids_of_devices_stand_under_their_keys_alone() -> None:
    assert list(strays({"vendor": "beef", "device": "09c4", "class_code": "12zz", "name": "beef"})) == [
        ".class_code",
        ".name",
    ]


def test_a_key_is_a_text_too() -> None:
    assert list(strays({"attributes": {"secret-key": "1"}})) == [".attributes.<key 1>"]


def test_words_of_the_api_are_given_for_a_first_contact() -> None:
    task = {"kind": "VirtualMachine.powerOn", "fault": "InvalidState"}
    assert list(strays(task, "", {"VirtualMachine.powerOn", "InvalidState"})) == []
    assert list(strays(task)) == [".kind", ".fault"]


@pytest.mark.parametrize("text", ["0000:3b:00.0, 0000:af:00.0", "0000:3b:00.0 at 0, 4", "NVIDIA A100 40GB PCIe"])
def test_texts_about_gpus(text: str) -> None:
    assert is_about_gpus(text)


@pytest.mark.parametrize("text", ["at ml-07", "0000:3b:00.0 at vdi-01", "2 GPUs free on esx-01"])
def test_texts_about_others(text: str) -> None:
    assert not is_about_gpus(text)


def test_a_bundle_with_a_stray_is_not_made() -> None:
    names = Pseudonyms(b"k" * 32)
    wrong = {"vms": [{"name": f"ml-{number:02}"} for number in range(5)]}
    with pytest.raises(Refused) as refused:
        bundle(wrong, {}, names, WRITTEN)
    assert refused.value.message == (
        "the bundle is not written: it would contain 5 texts of this vCenter, at scenario.json.vms.0.name, "
        "scenario.json.vms.1.name, scenario.json.vms.2.name and 2 more"
    )


def test_pseudonyms_go_by_kind_name_and_key() -> None:
    first, two = Pseudonyms(b"1" * 32), Pseudonyms(b"2" * 32)
    pseudonym = first.of(NameKind.VM, "ml-07")
    assert pseudonym == first.of(NameKind.VM, "ml-07") != first.of(NameKind.VM, "ml-08")
    assert pseudonym.removeprefix("vm-") != first.of(NameKind.HOST, "ml-07").removeprefix("host-")
    assert pseudonym != two.of(NameKind.VM, "ml-07")
    assert first.real_names[pseudonym] == "ml-07"
    assert first.of(NameKind.VM, "\udce9")  # half a character is a name too


@pytest.mark.parametrize("ref", ["vm-42", "host-7", "domain-c7", "domain-s9", "datastore-11"])
def test_ids_of_vcenter_are_as_they_are(ref: str) -> None:
    assert Pseudonyms(b"k").ref(ref) == ref


@pytest.mark.parametrize("ref", ["vm-secret", "ha-host", "10.1.2.3", "vm-42\n", "host-" + "1" * 30])
def test_other_ids_are_not(ref: str) -> None:
    assert Pseudonyms(b"k").ref(ref).startswith("id-")


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
