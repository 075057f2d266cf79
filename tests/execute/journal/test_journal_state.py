"""The state of a journal is a pure fold: in one go, record by record, or from any checkpoint, it comes to the same."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuops.execute.journal.journal_state import (
    DURATIONS_KEPT,
    FOLD,
    KEPT_AFTER_RETURN,
    JournalState,
    dump_state,
    load_state,
)
from gpuops.execute.journal.record import DurationKey, Kind, Record
from gpuops.model.nights.rotation_policy import LATE

NOW = datetime(2026, 11, 20, 21, tzinfo=UTC)
HOUR = timedelta(hours=1)


class Writer:
    """Makes records in order, an hour apart."""

    def __init__(self) -> None:
        self.records: list[Record] = []
        self.now = NOW

    def write(self, run: str, kind: Kind, /, **body: Any) -> None:
        self.now += HOUR
        self.records.append(Record(len(self.records) + 1, run, kind, self.now, body))

    def begin(self, run: str, kind: str = "rotate night", night: str | None = "n1", policy: str = "text") -> None:
        self.write(run, Kind.BEGUN, kind=kind, night=night, policy=policy, pid=7, digest="")

    def save(self, vm: str, night: str = "n1", host: str = "host-1", role: str = "desktop") -> None:
        self.write("", Kind.ORIGINAL, night=night, vm=vm, role=role, uuid=None, name=vm, host=host, profiles=["a"])

    def intend(self, run: str, number: int, vm: str, step: str = "SuspendVm", power: str = "poweredOn") -> None:
        before = {"host": "host-1", "power": power, "profiles": ["b", "a"], "name": vm}
        op_id, fields = f"gpuops-{run}-{number}", {"machine": f"of-{vm}"} if step.endswith("Gate") else {}
        self.write(run, Kind.INTENT, op=op_id, step={step: {"vm": vm, **fields}}, seen=NOW.isoformat(), before=before)

    def settle(
        self, run: str, number: int, state: str, duration_s: float | None = None, suspended_at: datetime | None = None
    ) -> None:
        body = {"op": f"gpuops-{run}-{number}", "state": state, "reason": "", "duration_s": duration_s}
        fields = {"suspended": suspended_at.isoformat()} if suspended_at is not None else {}
        self.write(run, Kind.SETTLED, **body, **fields)

    def state(self) -> JournalState:
        return fold(JournalState("vc-1"), self.records)


def fold(state: JournalState, records: list[Record]) -> JournalState:
    for record in records:
        state.apply(record)
    return state


RUNS, VMS = st.sampled_from(["r1", "r2"]), st.sampled_from(["vm-1", "vm-2"])
NIGHTS = st.sampled_from(["n1", "n2", None])
ACTS = st.one_of(
    st.tuples(
        st.just("begin"),
        RUNS,
        st.sampled_from(["rotate night", "rotate day", "attach"]),
        NIGHTS,
        st.sampled_from(["", "p"]),
    ),
    st.tuples(st.just("end"), RUNS),
    st.tuples(
        st.just("save"), VMS, st.sampled_from(["n1", "n2"]), st.just("host-1"), st.sampled_from(["desktop", "ml"])
    ),
    st.tuples(
        st.just("intend"),
        RUNS,
        st.integers(1, 3),
        VMS,
        st.sampled_from(["SuspendVm", "ResumeVm", "PowerOnVm", "ShutDownGuest", "CloseGate", "OpenGate"]),
        st.sampled_from(["poweredOn", "poweredOff"]),
    ),
    st.tuples(
        st.just("settle"),
        RUNS,
        st.integers(1, 3),
        st.sampled_from(["done", "failed", "unknown"]),
        st.just(3.5),
        st.sampled_from([None, NOW]),
    ),
    st.tuples(st.just("submit"), RUNS, st.integers(1, 3)),
    st.tuples(st.just("return"), VMS, st.sampled_from(["n1", "n2"])),
    st.tuples(st.just("days pass")),
)


def play(acts: list[tuple[Any, ...]]) -> list[Record]:
    """Those acts that a journal could hold: an outcome only of what an open run intended."""
    writer = Writer()
    open_intents: set[tuple[Any, ...]] = set()
    for act, *details in acts:
        match act:
            case "begin":
                writer.begin(*details)
                open_intents -= {open_one for open_one in open_intents if open_one[0] == details[0]}
            case "end":
                writer.write(details[0], Kind.ENDED)
                open_intents -= {open_one for open_one in open_intents if open_one[0] == details[0]}
            case "save":
                writer.save(*details)
            case "intend" if details[0] in writer.state().runs:
                writer.intend(*details)
                open_intents.add(tuple(details[:2]))
            case "settle" if tuple(details[:2]) in open_intents:
                writer.settle(*details)
            case "submit" if tuple(details[:2]) in open_intents:
                writer.write(details[0], Kind.SUBMITTED, op=f"gpuops-{details[0]}-{details[1]}", task="task-1")
            case "return":
                writer.write("", Kind.RETURNED, vm=details[0], night=details[1])
            case "days pass":
                writer.now += KEPT_AFTER_RETURN + HOUR
            case _:
                pass
    return writer.records


@settings(max_examples=150)
@given(st.lists(ACTS, max_size=25), st.integers(0, 25))
def test_from_a_checkpoint_it_is_the_same_state(acts: list[tuple[Any, ...]], cut: int) -> None:
    records = play(acts)
    whole = fold(JournalState("vc-1"), records)
    half = fold(JournalState("vc-1"), records[:cut])
    body = json.loads(json.dumps(dump_state(half)))
    state_read = load_state("vc-1", Record(half.seq, "", Kind.CHECKPOINT, NOW, body))
    assert state_read is not None
    assert dump_state(fold(state_read, records[cut:])) == dump_state(whole)


def test_a_checkpoint_of_another_fold_is_not_used() -> None:
    body = {**dump_state(JournalState("vc-1")), "fold": FOLD + 1}
    assert load_state("vc-1", Record(9, "", Kind.CHECKPOINT, NOW, body)) is None


def test_what_came_back_is_forgotten_after_a_while_and_what_is_owed_never() -> None:
    writer = Writer()
    writer.save("vm-1")
    writer.save("vm-2")
    writer.write("", Kind.RETURNED, night="n1", vm="vm-1")
    writer.now += KEPT_AFTER_RETURN - HOUR
    writer.begin("r1")
    assert {vm for _, vm in writer.state().originals} == {"vm-1", "vm-2"}
    writer.now += timedelta(days=4000)
    writer.begin("r2")
    assert {vm for _, vm in writer.state().originals} == {"vm-2"}


def writer_after_start(outcome: str) -> Writer:
    """A night that asked for the start of an ML VM, with this outcome."""
    writer = Writer()
    writer.begin("r1")
    writer.save("vm-1", role="ml")
    writer.intend("r1", 1, "vm-1", "PowerOnVm", "poweredOff")
    writer.settle("r1", 1, outcome)
    writer.write("r1", Kind.ENDED)
    return writer


def is_over(writer: Writer) -> bool:
    """Whether a start from now on is not the night's."""
    return writer.state().originals["n1", "vm-1"].stopped


@pytest.mark.parametrize("kind", ["rotate day", "rotate restore"])
def test_what_a_return_found_powered_off_or_has_stopped_is_no_start_of_the_night_any_more(kind: str) -> None:
    started_unknown, stopped = writer_after_start("unknown"), writer_after_start("done")
    for writer in (started_unknown, stopped):
        writer.begin("r2", kind, night=None)
    started_unknown.intend("r2", 1, "vm-1", "SetAttribute", "poweredOff")
    stopped.intend("r2", 1, "vm-1", "ShutDownGuest")
    assert is_over(started_unknown)
    assert not is_over(stopped)
    stopped.settle("r2", 1, "done")
    assert is_over(stopped)
    stopped.begin("r3")
    stopped.intend("r3", 1, "vm-1", "PowerOnVm", "poweredOff")
    assert not is_over(stopped), "it was taken anew"


def test_a_start_that_may_still_arrive_is_not_over_nor_one_that_something_else_met() -> None:
    late, attached = writer_after_start("unknown"), writer_after_start("done")
    late.now -= 2 * HOUR - timedelta(minutes=1)
    late.begin("r2", "rotate day", night=None)
    late.now -= HOUR - timedelta(minutes=1)
    late.intend("r2", 1, "vm-1", "SetAttribute", "poweredOff")
    attached.begin("r2", "attach", night=None)
    attached.intend("r2", 1, "vm-1", "ReconfigureVm", "poweredOff")
    assert not is_over(late)
    assert not is_over(attached)


def test_durations_are_kept_of_what_was_done_and_the_latest_alone() -> None:
    writer = Writer()
    writer.begin("r1")
    for number in range(1, DURATIONS_KEPT + 3):
        writer.intend("r1", number, "vm-1")
        writer.settle("r1", number, "done", float(number))
    writer.intend("r1", 99, "vm-1", "ResumeVm")
    writer.settle("r1", 99, "failed", 99.0)
    assert {key: list(values) for key, values in writer.state().durations.items()} == {
        DurationKey("SuspendVm", "a+b", "host-1"): [float(number) for number in range(3, DURATIONS_KEPT + 3)]
    }


def test_what_a_night_takes_in_its_second_run_is_owed_though_a_morning_between_had_closed_it() -> None:
    """Its first run ended before it took anything: a full disk, say."""
    writer = Writer()
    writer.save("vm-1")
    writer.save("vm-2")
    for vm in ("vm-1", "vm-2"):
        writer.write("", Kind.RETURNED, night="n1", vm=vm)
    writer.begin("r1")
    writer.intend("r1", 1, "vm-1")
    writer.intend("r1", 2, "vm-2", "SetAttribute")
    owed = {vm for (_, vm), saved in writer.state().originals.items() if saved.returned is None}
    assert owed == {"vm-1"}, "a marker takes nothing"


def test_an_effect_that_was_unknown_and_then_failed_took_nothing() -> None:
    writer = Writer()
    writer.begin("r1")
    writer.save("vm-1")
    writer.intend("r1", 1, "vm-1")
    assert writer.state().takes == {("n1", "vm-1"): 1}
    writer.settle("r1", 1, "unknown")
    assert writer.state().takes == {("n1", "vm-1"): 1}
    writer.settle("r1", 1, "failed")
    assert writer.state().takes == {("n1", "vm-1"): 0}


def test_a_night_is_over_as_soon_as_a_morning_resumes_a_desktop_of_it() -> None:
    """Before any VM is back. A restore by name does not end the night, nor does a stop of an ML VM."""
    writer = Writer()
    writer.begin("r1")
    writer.save("vm-1")
    writer.intend("r1", 1, "vm-1")
    writer.begin("r2", "rotate day", None)
    writer.intend("r2", 1, "vm-9", "ShutDownGuest")
    assert writer.state().over == set()
    writer.intend("r2", 2, "vm-1", "ResumeVm")
    writer.settle("r2", 2, "unknown")
    assert writer.state().over == {"n1"}
    body = json.loads(json.dumps(dump_state(writer.state())))
    state_read = load_state("vc-1", Record(9, "", Kind.CHECKPOINT, NOW, body))
    assert state_read is not None
    assert state_read.over == {"n1"}


def test_the_last_policy_of_each_kind_is_known() -> None:
    writer = Writer()
    for run, kind, policy in (("r1", "rotate night", "a"), ("r2", "rotate day", "b"), ("r3", "attach", "")):
        writer.begin(run, kind, policy=policy)
    assert list(writer.state().policies.items()) == [("rotate night", "a"), ("rotate day", "b")]
    writer.begin("r4", "rotate night", policy="c")
    assert list(writer.state().policies.items()) == [("rotate day", "b"), ("rotate night", "c")]


@pytest.mark.parametrize(
    ("closed", "opened", "is_held"),
    [
        ("done", None, True),
        ("unknown", None, True),
        (None, None, True),
        ("failed", None, False),
        ("done", "done", False),
        ("done", "failed", True),
        ("done", "unknown", True),
    ],
)
def test_a_gate_is_held_from_the_intent_to_close_it_until_it_is_seen_open(
    closed: str | None, opened: str | None, is_held: bool
) -> None:
    writer = Writer()
    writer.begin("r1")
    writer.save("vm-1")
    writer.intend("r1", 1, "vm-1", "CloseGate")
    if closed is not None:
        writer.settle("r1", 1, closed)
    if opened is not None:
        writer.begin("r2", "rotate day", None)
        writer.intend("r2", 1, "vm-1", "OpenGate")
        writer.settle("r2", 1, opened)
    held_gates = {key: machine for key, (count, machine) in writer.state().gates.items() if count > 0}
    assert held_gates == ({("n1", "vm-1"): "of-vm-1"} if is_held else {})


@pytest.mark.parametrize(("later", "is_held"), [(LATE - timedelta(seconds=1), True), (LATE, False)])
def test_a_gate_whose_request_was_lost_is_held_though_it_was_opened(later: timedelta, is_held: bool) -> None:
    """Another request was answered meanwhile: the lost one may still come, until it is too late for that."""
    writer = Writer()
    writer.begin("r1")
    writer.save("vm-1")
    writer.intend("r1", 1, "vm-1", "CloseGate")
    writer.settle("r1", 1, "unknown")
    lost = writer.now
    writer.intend("r1", 2, "vm-1", "CloseGate")
    writer.settle("r1", 2, "done")
    writer.intend("r1", 3, "vm-1", "OpenGate")
    writer.now = lost + later - HOUR
    writer.settle("r1", 3, "done")
    assert bool(writer.state().gates) is is_held
