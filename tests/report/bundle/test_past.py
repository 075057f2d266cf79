"""What the journal tells, in a bundle: verdicts, moments and steps; names, users and reasons as pseudonyms."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta

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
from gpuops.model.vcenter.host import Host
from gpuops.model.vcenter.inventory import Inventory
from gpuops.report.bundle.harmless import strays
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
