"""The state of a journal as JSON and back: the body of a checkpoint."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from datetime import datetime
from typing import Any, Final

from gpuops.execute.journal.journal_state import DURATIONS_KEPT, JournalState
from gpuops.execute.journal.record import DurationKey, Intended, IntentState, OpenRun, Record, Run, Saved
from gpuops.model.nights.history import GivenUp, Thing
from gpuops.model.nights.night_record import Role
from gpuops.model.stored import from_stored, to_stored
from gpuops.model.vcenter.vm import VmDrs
from gpuops.plan.rotation.nights.night_refusals import StepCounts

FOLD: Final = 18
"""A checkpoint with another number is not used: the records are read from the first one, and give the same state."""


def dump_state(state: JournalState) -> dict[str, Any]:
    """Return the complete state without its position, which is that of the checkpoint record."""
    # VMs of one night share a policy: each text is stored once, and VMs refer to it by number
    texts = {
        text: number for number, text in enumerate(dict.fromkeys(saved.policy for saved in state.originals.values()))
    }
    # in each row, `*key` is the night and the VM
    return {
        "fold": FOLD,
        "texts": list(texts),
        "runs": [_dump_run(open_run) for open_run in state.runs.values()],
        "policies": [[kind, text] for kind, text in state.policies.items()],
        "originals": [
            [*_dump_saved(saved), state.takes.get(key, 0), texts[saved.policy]]
            for key, saved in state.originals.items()
        ],
        "gpu_modes": [[*key, dict(saved.gpu_modes)] for key, saved in state.originals.items() if saved.gpu_modes],
        "takes": [[*key, count] for key, count in state.takes.items() if key not in state.originals],
        "gates": [[*key, count, machine] for key, (count, machine) in state.gates.items()],
        "lost_closes": [[*key, at.isoformat()] for key, at in state.lost_closes.items()],
        "lost": [[*key, at.isoformat()] for key, at in state.lost.items()],
        "durations": [[*key, *durations_s] for key, durations_s in state.durations.items()],
        "setbacks": {night: to_stored(counts) for night, counts in state.setbacks.items()},
        "over": sorted(state.over),
        "lease_numbers": state.lease_numbers,
        "leases": {night: sorted(numbers) for night, numbers in state.leases.items()},
        "skips": sorted(state.skips),
        "given_up": [_dump_given_up(given_up) for given_up in state.given_up.values()],
        "changed": _moment(state.changed),
        "return_seen": _moment(state.return_seen),
    }


def load_state(vcenter: str, record: Record) -> JournalState | None:
    """Return the state that this checkpoint holds; None if another version with another `FOLD` wrote it.

    Raises KeyError, ValueError or TypeError for a body that gpuops did not write.
    """
    body = record.body
    if body["fold"] != FOLD:
        return None
    state = JournalState(vcenter)
    state.seq = state.checkpoint = record.seq
    state.runs = {run_body["id"]: _load_run(vcenter, run_body) for run_body in body["runs"]}
    state.policies = dict(body["policies"])
    for night, vm, role, uuid, name, host, profiles, returned, drs, suspended, started, *stop_and_take in body[
        "originals"
    ]:
        stopped, count, text = stop_and_take
        drs_before = VmDrs(drs) if drs is not None else None
        state.originals[night, vm] = Saved(
            night, vm, Role(role), uuid, name, host, tuple(profiles), _load_moment(returned), drs_before,
            body["texts"][text], _load_moment(suspended), _load_moment(started), stopped,
        )  # fmt: skip
        if count:
            state.takes[night, vm] = count
    for night, vm, modes in body.get("gpu_modes", ()):  # an older gpuops stored none
        state.originals[night, vm].gpu_modes = tuple(modes.items())
    state.takes |= {(night, vm): count for night, vm, count in body["takes"]}
    state.gates = {(night, vm): (count, machine) for night, vm, count, machine in body["gates"]}
    state.lost_closes = {(night, vm): datetime.fromisoformat(at) for night, vm, at in body["lost_closes"]}
    state.lost = {(night, vm): datetime.fromisoformat(at) for night, vm, at in body["lost"]}
    state.durations = {
        DurationKey(step, profiles, host): deque(durations_s, maxlen=DURATIONS_KEPT)
        for step, profiles, host, *durations_s in body["durations"]
    }
    state.setbacks = {night: from_stored(StepCounts, counts) for night, counts in body["setbacks"].items()}
    state.over = set(body["over"])
    state.lease_numbers = dict(body["lease_numbers"])
    state.leases = {night: set(numbers) for night, numbers in body["leases"].items()}
    state.skips = {(policy, night) for policy, night in body["skips"]}
    state.given_up = {given_up["ref"]: _load_given_up(given_up) for given_up in body["given_up"]}
    state.changed = _load_moment(body["changed"])
    state.return_seen = _load_moment(body["return_seen"])
    return state


def _dump_run(open_run: OpenRun) -> dict[str, Any]:
    run = open_run.run
    return {
        "id": run.id,
        "kind": run.kind,
        "night": run.night,
        "policy": run.policy,
        "pid": run.pid,
        "started": run.started.isoformat(),
        "vms": run.vms,
        "order": run.order,
        "intents": [
            [intended.op_id, intended.step, intended.seen.isoformat(), intended.before, intended.state, intended.task]
            for intended in open_run.intents.values()
        ],
        "given_up": sorted(open_run.given_up),
    }


def _load_run(vcenter: str, body: Mapping[str, Any]) -> OpenRun:
    started = datetime.fromisoformat(body["started"])
    vms = tuple(body.get("vms", ()))
    kind, night, policy, pid = (body[key] for key in ("kind", "night", "policy", "pid"))
    run = Run(body["id"], vcenter, kind, night, policy, pid, started, vms, body.get("order", ""))
    intents = {
        op_id: Intended(op_id, step, datetime.fromisoformat(looked_at), before, IntentState(state), task)
        for op_id, step, looked_at, before, state, task in body["intents"]
    }
    return OpenRun(run, intents, set(body["given_up"]))


def _dump_given_up(given_up: GivenUp) -> dict[str, Any]:
    body: dict[str, Any] = to_stored(given_up)
    return body | {"at": given_up.at.isoformat()}


def _load_given_up(body: Mapping[str, Any]) -> GivenUp:
    read = {"thing": Thing(body["thing"]), "at": datetime.fromisoformat(body["at"])}
    return from_stored(GivenUp, {**body, **read})


def _dump_saved(saved: Saved) -> list[Any]:
    returned, suspended, started = _moment(saved.returned), _moment(saved.suspended_at), _moment(saved.started_at)
    return [
        saved.night, saved.vm, saved.role, saved.uuid, saved.name, saved.host, saved.profiles, returned, saved.drs,
        suspended, started, saved.stopped,
    ]  # fmt: skip


def _moment(moment: datetime | None) -> str | None:
    return moment.isoformat() if moment is not None else None


def _load_moment(text: str | None) -> datetime | None:
    return datetime.fromisoformat(text) if text is not None else None
