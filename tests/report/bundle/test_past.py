"""What the journal tells, in a bundle: verdicts, moments and steps; names, users and reasons as pseudonyms."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta

import pytest

from gpuops.catalog import load
from gpuops.model.nights.history import (
    HeldPeriod,
    Incident,
    PastChange,
    PastEvents,
    PastNight,
    PastRun,
    PastStep,
    PastVm,
    RunBy,
)
from gpuops.model.nights.night_record import Role
from gpuops.model.prediction import Misprediction, PastMisprediction, PastPredictions, Predicted
from gpuops.model.vcenter.host import Host
from gpuops.model.vcenter.inventory import Inventory
from gpuops.report.bundle.harmless import strays
from gpuops.report.bundle.mispredictions import mispredictions_document
from gpuops.report.bundle.pseudonyms import NameKind, Pseudonyms
from gpuops.report.bundle.runs import PastWriter

AT = datetime(2026, 11, 20, 22, tzinfo=UTC)
LATER = AT + timedelta(minutes=3)
VCENTER = "5de8f1c2-0000-4000-8000-000000000001"
MARK = "Zq7x"
INVENTORY = Inventory(VCENTER, "8.0.3.0", AT, hosts={"host-1": Host("host-1", f"{MARK}-esx")})
RUN = PastRun(f"{MARK}-run", "rotate night", RunBy(f"{MARK}-user", f"{MARK}-machine", 7), AT, LATER)
REASON = f"10.1.2.3: no room beside {MARK}"


def past() -> PastEvents:
    steps = (PastStep("suspend", AT, LATER, True), PastStep(f"{MARK} step", AT))
    vm = PastVm(
        "vm-7", MARK, f"{MARK}-vm", Role.ML, ("nvidia_a40-8q", f"{MARK}-8q"), 1.0, (HeldPeriod(AT, LATER),), True,
        steps=steps,
    )  # fmt: skip
    incidents = (
        Incident(AT, f"{MARK}-vm", "suspend failed", REASON),
        Incident(AT, f"{MARK}-esx", "end of maintenance mode: outcome unknown", REASON),
        Incident(AT, "rotate night", "cut off", "killed"),
        Incident(AT, f"{MARK}-vm", f"{MARK} what"),
    )
    night = PastNight(f"2026-11-20 {MARK}", VCENTER, AT, f"{MARK}-policy", (RUN,), (vm,), incidents)
    change = PastChange(f"{MARK}-change", VCENTER, f"{MARK} verb", RUN, (f"{MARK}-vm", f"{MARK}-esx"), incidents, True)
    return PastEvents(f"/{MARK}/journal", (night,), (change,), 3)


def test_runs() -> None:
    names = Pseudonyms(b"k" * 32)
    document = PastWriter(INVENTORY, load(everything=True), names).document(past())
    assert MARK not in json.dumps(document)
    assert list(strays(document)) == []
    [night], [change] = document["nights"], document["changes"]
    assert night["outcome"] == "done"
    assert night["vms"][0]["profiles"][0] == "nvidia_a40-8q"
    assert night["vms"][0]["steps"][0] == {
        "step": "suspend", "begins": AT.isoformat(), "ends": LATER.isoformat(), "done": True,
    }  # fmt: skip
    told = [(each["step"], each["became"]) for each in night["incidents"]]
    assert told == [
        ("suspend", "failed"),
        ("end of maintenance mode", "outcome unknown"),
        (None, "cut off"),
        (None, None),
    ]
    assert night["incidents"][2]["about"] == "rotate night"
    assert names.given[night["incidents"][0]["reason"]] == REASON
    assert night["incidents"][0]["reason"] == change["incidents"][1]["reason"], "the same reason is the same word"
    assert change["subjects"] == [names.of(NameKind.VM, f"{MARK}-vm"), names.of(NameKind.HOST, f"{MARK}-esx")]
    assert change["outcome"] == "partly done"


def wrong(what: Predicted, predicted: str, found: str, **facts: str) -> PastMisprediction:
    seen = Misprediction(what, predicted, found, {name.replace("_", " "): value for name, value in facts.items()})
    return PastMisprediction(
        VCENTER, f"{MARK}-run", "rotate night", None, "op", AT, "start", "vm-7", f"{MARK}-vm", "host-1", seen
    )


@pytest.mark.parametrize(
    ("what", "predicted", "found", "shown"),
    [
        (Predicted.GPU, "0000:3b:00.0 (NUMA node 0)", "0000:af:00.0", ("0000:3b:00.0 (NUMA node 0)", "0000:af:00.0")),
        (Predicted.DURATION, "180 s at the most", "400 s", ("180 s at the most", "400 s")),
        (Predicted.ADMISSION, "admitted", f"refused: {MARK}", ("admitted", "reason-")),
        (Predicted.ADMISSION, "refused: ml", "admitted", ("reason-", "admitted")),
        (Predicted.FREE_AFTER, "2 GPUs free", f"{MARK} free", ("2 GPUs free", "reason-")),
    ],
)
def test_mispredictions(what: Predicted, predicted: str, found: str, shown: tuple[str, str]) -> None:
    names = Pseudonyms(b"k" * 32)
    facts = {"profiles": "nvidia_a40-8q", "assignment_policy": MARK, "GPU_0000:3b:00.0": "NVIDIA A40, sameSize, empty"}
    of_another = PastMisprediction(
        "other", "r", "k", None, "o", AT, "start", "vm-1", MARK, None, Misprediction(what, "", "")
    )
    told = PastPredictions(
        f"/{MARK}", (wrong(what, predicted, found, secret=MARK, **facts), of_another), 7, {REASON: 2}
    )
    document = mispredictions_document(told, VCENTER, names)
    assert MARK not in json.dumps(document)
    assert list(strays(document)) == []
    [each] = document["mispredictions"]
    assert each["predicted"].startswith(shown[0])
    assert each["found"].startswith(shown[1])
    assert each["facts"][0] == {"fact": "profiles", "value": "nvidia_a40-8q"}
    assert [fact["fact"] for fact in each["facts"]] == ["profiles", "assignment policy", "GPU 0000:3b:00.0"]
    assert document["right"] == 7
    assert [names.given[each["reason"]] for each in document["cannot_say"]] == [REASON]
