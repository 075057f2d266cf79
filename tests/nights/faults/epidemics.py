"""Epidemics: one thing that befalls many desktops of a night, so that it surely meets one of those that matter.

Each strikes one night in thirty, by dice of its own: a new one changes no other night.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any, Final

from gpuops.execute.runs import RunKind
from gpuops.sim.fault_injection.rule import rules_of
from tests.nights.faults.cron import returns_early
from tests.nights.faults.event import Event

ONE_IN: Final = 30
MORNING_S: Final = 9 * 3600
"""When the return begins."""
READ_FOR_IDLE: Final = ("summary.quickStats.overallCpuUsage", "runtime.numMksConnections")
"""What tells whether a desktop is used."""

REVERTED: Final = ("vm.reverted_to_off", "vm.reverted_to_suspended", "vm.reverted_to_running")


def epidemics_of(seed: int, desktops: Sequence[str], ml: Sequence[str]) -> tuple[Event, ...]:
    """What befalls many desktops, and the return that is cut off, of a seed."""
    return (
        *_crowd(seed, desktops),
        *_working_from_afar(seed, desktops),
        *_withdrawn(seed, desktops),
        *_moved_out(seed, desktops),
        *_snapshot_reverts(seed, desktops, ml),
        *suspended_before(seed, desktops),
        *_thieves(seed, ml),
        *_boomerangs(seed, desktops),
        *_missing_utilization(seed),
        *_recreated_desktops(seed, desktops),
        *_elsewhere(seed, desktops),
        *_return_cut_off(seed),
    )


def _dice(seed: int, name: str, one_in: int = ONE_IN) -> random.Random | None:
    rng = random.Random(f"{seed}:{name}")
    return None if rng.randrange(one_in) else rng


def _crowd(seed: int, desktops: Sequence[str]) -> list[Event]:
    """One user after the other sits down while desktops are taken."""
    rng = _dice(seed, "crowd")
    return [Event("H1", target=desktop, at_s=float(rng.randint(1, 300))) for desktop in desktops] if rng else []


def _working_from_afar(seed: int, desktops: Sequence[str]) -> list[Event]:
    """Users work by remote desktop from some moment of the evening on: all from the same, or each from one of his."""
    rng = _dice(seed, "from afar")
    if rng is None:
        return []
    at_s = float(rng.randint(1, 300)) if rng.randrange(2) else None
    return [Event("H4", target=desktop, at_s=at_s or float(rng.randint(1, 600))) for desktop in desktops]


def _withdrawn(seed: int, desktops: Sequence[str]) -> list[Event]:
    """Desktops are opted out, or lose their owner's mark, while they are taken or when they are away."""
    rng = _dice(seed, "withdrawn")
    if rng is None:
        return []
    last_s, fault = rng.choice([300, MORNING_S]), rng.choice(["H5", "H6"])
    return [Event(fault, target=desktop, at_s=float(rng.randint(1, last_s))) for desktop in desktops]


def _moved_out(seed: int, desktops: Sequence[str]) -> list[Event]:
    """Desktops are moved out of the folder that the policy names, and renamed, before they are taken or afterwards."""
    rng = _dice(seed, "moved out")
    if rng is None:
        return []
    last_s = rng.choice([300, MORNING_S])
    return [
        Event(fault, rules_of(fault, {"target": desktop, "at_s": float(rng.randint(1, last_s))}))
        for desktop in desktops
        for fault in rng.choice([("V10",), ("V6",), ("V10", "V6")])
    ]


def _snapshot_reverts(seed: int, desktops: Sequence[str], ml: Sequence[str]) -> list[Event]:
    """VMs are reverted to snapshots that were taken when they were off, suspended or running; while they are taken, in
    the night, or when they come back."""
    rng = _dice(seed, "reverted")
    if rng is None:
        return []
    first_s, last_s = rng.choice([(1, 300), (300, MORNING_S), (MORNING_S, MORNING_S + 600)])
    kinds = rng.choice([REVERTED, REVERTED, *((kind,) for kind in REVERTED)])
    vms = [*desktops, *rng.choice([(), ml])]
    changes = (
        {"target": vm, "at_s": float(rng.randint(first_s, last_s)), "happening": rng.choice(kinds)} for vm in vms
    )
    return [Event("V11", rules_of("V11", change)) for change in changes]


def suspended_before(seed: int, desktops: Sequence[str]) -> list[Event]:
    """While desktops are away each, or every other one, is reverted to a snapshot in which it is suspended too: it is
    away as before, in another state."""
    rng = _dice(seed, "suspended before", 2 * ONE_IN)
    if rng is None:
        return []
    changes: list[dict[str, Any]] = [
        {"target": vm, "at_s": float(rng.randint(900, MORNING_S)), "happening": "vm.reverted_to_suspended"}
        for vm in desktops[:: rng.choice([1, 2])]
    ]
    return [Event("V11", rules_of("V11", change)) for change in changes]


def _thieves(seed: int, ml: Sequence[str]) -> list[Event]:
    """Somebody starts the ML VMs that still wait, on the GPUs of desktops that are away."""
    rng = _dice(seed, "thieves")
    if rng is None:
        return []
    at_s = float(rng.randint(900, MORNING_S + 600))
    return [Event("G1", rules_of("G1", {"target": target, "at_s": at_s})) for target in ml]


def _boomerangs(seed: int, desktops: Sequence[str]) -> list[Event]:
    """Several desktops are woken again and again: one of them is among those taken, then. Or soon all of them are, by
    a broker that knows nothing of the night."""
    rng = _dice(seed, "boomerangs")
    if rng is None:
        return []
    some = [Event("H3", target=desktop, at_s=float(rng.randint(60, 3600))) for desktop in desktops[:6]]
    if rng.randrange(2):
        return some
    return [Event("H3", target=desktop, at_s=float(rng.randint(60, 300))) for desktop in desktops]


def _missing_utilization(seed: int) -> list[Event]:
    """vCenter reports no utilization for any desktop, all night or for some reads."""
    rng = _dice(seed, "unseen")
    if rng is None:
        return []
    times = rng.choice([None, None, 40, 400])
    return [Event("A10", rules_of("A10", {"target": "desktop-*", "property": property_name, "times": times}))
            for property_name in rng.choice([READ_FOR_IDLE, READ_FOR_IDLE[:1], READ_FOR_IDLE[1:]])]  # fmt: skip


def _recreated_desktops(seed: int, desktops: Sequence[str]) -> list[Event]:
    """Half of the desktops are deleted at night, and made anew under their names."""
    rng = _dice(seed, "recreated")
    return [_at(rng, "V4", desktop) for desktop in desktops[::2]] if rng else []


def _elsewhere(seed: int, desktops: Sequence[str]) -> list[Event]:
    """Most desktops are on another host in the morning."""
    rng = _dice(seed, "elsewhere")
    return [_at(rng, rng.choice(["C3", "C4"]), desktop) for desktop in desktops[:8]] if rng else []


def _at(rng: random.Random, fault: str, desktop: str) -> Event:
    at_s = rng.randint(900, 30_000) if rng.random() < 0.7 else rng.randint(MORNING_S - 60, MORNING_S + 600)
    changes: dict[str, Any] = {"target": desktop, "at_s": float(at_s)}
    return Event(fault, rules_of(fault, changes))


def _return_cut_off(seed: int) -> list[Event]:
    """A return in the middle of the night is killed, and the next night's run comes before anybody finishes it."""
    rng = random.Random(f"{seed}:cut")
    if not returns_early(seed) or rng.randrange(2):
        return []
    return [Event("K1", target=RunKind.DAY, point=rng.randint(5, 100))]
