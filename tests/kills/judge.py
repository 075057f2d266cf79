"""The judge of the kill loop: reads the files that were seen, and says what was broken. It shares no code with gpuops.

Only the standard library and a YAML reader are imported here (a test holds it to that). It reads the simulated
vCenter's ledger as JSON, the policy as it was given, the world as it was declared, and what each process said.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import yaml

OURS = "gpuops-"
"""What the operation id of a call of ours begins with."""
FINE = (0, 3, 4, 5, 6)
"""Exit codes of runs that were not killed: done, refused, partly done, no vCenter, locked by another run."""
ENDED = (-9, -15, 143)
"""And one that was killed, or told to stop."""
ALWAYS = datetime(1970, 1, 1, tzinfo=UTC)
UNDER_WAY_S = 180.0
"""A look is at most half a minute old and a suspend takes its time: before that a desktop may have become busy."""


@dataclass
class Seen:
    """What the loop wrote down."""

    evening: dict[str, dict[str, Any]]
    ledger: list[dict[str, Any]]
    policy: dict[str, Any]
    runs: list[dict[str, Any]]
    used: list[dict[str, Any]]
    mornings: list[dict[str, int]] = field(default_factory=list)
    """How many effects and runs there had been when each night was over; none = one night, which has all of them."""

    @classmethod
    def read(cls, folder: Path) -> Seen:
        """The files of one world."""
        evening, ledger, runs, used, mornings = (
            json.loads((folder / f"{name}.json").read_text(encoding="utf-8"))
            for name in ("evening", "ledger", "runs", "used", "mornings")
        )
        policy = yaml.safe_load((folder / "policy.yaml").read_text(encoding="utf-8"))
        return cls({vm["name"]: vm for vm in evening}, ledger, policy, runs, used, mornings)

    def until(self, morning: dict[str, int]) -> Seen:
        """What had been seen when that morning was over."""
        return replace(self, ledger=self.ledger[: morning["ledger"]], runs=self.runs[: morning["runs"]], mornings=[])

    @property
    def marker(self) -> str:
        return str(self.policy["marker"])

    @property
    def queue(self) -> set[str]:
        return {entry["vm"] for entry in self.policy["ml"]["queue"]}

    def effects(self) -> Iterator[tuple[str, dict[str, Any]]]:
        """(the VM by its name of the evening, the effect), in order."""
        first_names: dict[str, str] = {}
        for change in self.ledger:
            if change["object_type"] != "VirtualMachine":
                continue
            first = first_names.setdefault(change["moid"], change["before"].get("name", change["name"]))
            yield first, change

    def ours(self) -> Iterator[tuple[str, dict[str, Any]]]:
        return ((name, entry) for name, entry in self.effects() if entry["operation_id"].startswith(OURS))

    def powers(self) -> dict[str, str]:
        """How each VM is at the end."""
        power_by_name = {
            name: {"on": "poweredOn", "off": "poweredOff"}[vm["power"]] for name, vm in self.evening.items()
        }
        for name, entry in self.effects():
            if "power" in entry["after"]:
                power_by_name[name] = entry["after"]["power"]
        return power_by_name

    def marked(self) -> set[str]:
        """Return the VMs with a marker at the end."""
        marker_by_name: dict[str, str] = {}
        for name, entry in self.effects():
            if self.marker in entry["after"]:
                marker_by_name[name] = entry["after"][self.marker]
        return {name for name, value in marker_by_name.items() if value}


def broken(record: Seen) -> list[str]:
    """Everything that is not as it must be; empty = each night and its morning were good.

    Each morning must leave what there was before the first night: every check is asked of all that was seen by then.
    """
    checks = (_lost_desktops, _busy, _discarded_states, _foreign, _markers, _codes, _twice)
    nights = [record.until(morning) for morning in record.mornings] or [record]
    return list(dict.fromkeys(problem for night in nights for check in checks for problem in check(night)))


def _last(record: Seen) -> dict[str, Any]:
    return record.runs[-1]


def _lost_desktops(record: Seen) -> Iterator[str]:
    """Every desktop that ran in the evening runs, or is named in the last words."""
    powers = record.powers()
    for name, vm in record.evening.items():
        if vm["power"] == "on" and powers[name] != "poweredOn" and name not in _last(record)["said"]:
            yield f"{name} ran in the evening, is {powers[name]}, and nobody says so"


def _busy(record: Seen) -> Iterator[str]:
    """No desktop in use is suspended."""
    limit = min(pool["idle"]["cpu_below_mhz"] for pool in record.policy["pools"])
    since = {name: ALWAYS for name, vm in record.evening.items() if vm["cpu_mhz"] >= limit}
    for usage in record.used:
        moment = datetime.fromisoformat(usage["from"]) + timedelta(seconds=UNDER_WAY_S)
        since[usage["name"]] = min(since.get(usage["name"], moment), moment)
    for name, entry in record.ours():
        at = datetime.fromisoformat(entry["at"])
        if entry["after"].get("power") == "suspended" and name in since and at > since[name]:
            yield f"{name} was suspended at {at:%H:%M:%S}, and was busy since {since[name]:%H:%M:%S}"


def _discarded_states(record: Seen) -> Iterator[str]:
    """No suspended state is discarded, and no desktop that ran is powered off."""
    for name, entry in record.ours():
        before, after = entry["before"].get("power"), entry["after"].get("power")
        if before == "suspended" and after == "poweredOff":
            yield f"{entry['method']} discarded what {name} held while it was suspended"
        if before == "poweredOn" and after == "poweredOff" and name not in record.queue:
            yield f"{entry['method']} powered off {name}"
        if entry["method"].startswith("Reset"):
            yield f"{entry['method']} reset {name}"


def _foreign(record: Seen) -> Iterator[str]:
    """Only desktops of the pools and VMs of the queue are touched."""
    for name, entry in record.ours():
        if not name.startswith("vdi-") and name not in record.queue:
            yield f"{entry['method']} touched {name}, which the policy does not name"


def _markers(record: Seen) -> Iterator[str]:
    """No marker is left but on who is named."""
    for name in sorted(record.marked()):
        if name not in _last(record)["said"]:
            yield f"{name} still has its marker, and nobody says so"


def _codes(record: Seen) -> Iterator[str]:
    """Exit codes agree with what happened."""
    for run in record.runs:
        if run["code"] not in (*FINE, *(ENDED if run["signal"] else ())):
            yield f"rotate {run['what']} ended {run['code']}: {run['said'][-300:]}"
        if "Traceback" in run["said"]:
            yield f"rotate {run['what']} printed a traceback: {run['said'][-300:]}"
    last, powers = _last(record), record.powers()
    if last["what"] != "day" or last["code"] not in (0, 4):
        yield f"the last run is rotate {last['what']}, which ended {last['code']}"
    if last["code"] == 0:
        for name, vm in record.evening.items():
            expected = {"on": "poweredOn", "off": "poweredOff"}[vm["power"]]
            if powers[name] != expected:
                yield f"the last morning ended 0, and {name} is {powers[name]}"
        if record.marked():
            yield f"the last morning ended 0, and {', '.join(sorted(record.marked()))} has a marker"


def _twice(record: Seen) -> Iterator[str]:
    """Each operation id does one thing to one VM: no request was sent twice."""
    first_effects: dict[str, Sequence[str]] = {}
    for name, entry in record.ours():
        effect = (entry["method"], name)
        if first_effects.setdefault(entry["operation_id"], effect) != effect or _repeats_state(entry):
            yield f"{entry['operation_id']} did {entry['method']} to {name}, and {first_effects[entry['operation_id']]}"


def _repeats_state(entry: dict[str, Any]) -> bool:
    """Whether an effect changed nothing of the power that it is about."""
    before, after = entry["before"].get("power"), entry["after"].get("power")
    return before is not None and before == after
