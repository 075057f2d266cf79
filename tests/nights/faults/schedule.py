"""Schedules: from a seed, what goes wrong in a night. A swarm: each night has a few kinds of trouble, at its own rates.

An event is a rule of the simulator with its id in the catalogue, a user at a desktop, or a kill of the run; a schedule
is a list of them, so that a failing one can be printed, replayed and shrunk. An epidemic is one thing that befalls many
desktops of a night, so that it surely meets one of those that matter. Each strikes one night in thirty, by dice of its
own: a new one changes no other night.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any, Final

from gpuops.execute.runs import RunKind
from gpuops.sim.fault_injection.rule import rules_of
from tests.nights.at_once.machines import leases_of
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


EFFECTS: Final = ("SuspendVM_Task", "PowerOnVM_Task", "PowerOffVM_Task", "SetField", "*_Task")
READS: Final = ("RetrievePropertiesEx", "WaitForUpdatesEx")

CALLS: Final = ("T1", "T2", "T3", "T4", "T5", "T6", "T7", "T9", "T10", "T11")
"""What befalls one call."""
SESSIONS: Final = ("N1", "N3", "N4", "N5", "N6")
TASKS: Final = ("A3", "A4", "A5", "A6", "A7", "A9", "V1", "V2", "V3", "V8", "G2", "G4", "C6")
"""What befalls a task."""
VMS: Final = ("A1", "A11", "A12", "V4", "V5", "V6", "V7", "G1", "C3", "C4")
"""What befalls one VM."""
HOSTS: Final = ("G5", "G6", "C1", "C2")
SITES: Final = ("T12", "T13", "N7", "N8", "C5", "K7")
MISSING: Final = ("A10", "N2")
USERS: Final = ("H1", "H2", "H3")
"""A user sits down at a desktop that is running; wakes up one that is suspended; or wakes it each time anew."""
WITHDRAWN: Final = ("H4", "H5", "H6", "V10", "V11")
"""In epidemics alone: a user works from afar, a desktop is opted out, its owner's mark is taken off, it is moved to
another folder, or a VM is reverted to a snapshot."""
KILLS: Final = ("K1",)
DISKS: Final = ("K3",)
"""The journal cannot be written."""
MACHINES: Final = ("K6", "K11")
"""Where there is a lock VM: the machine is paused while another one acts; the lock VM is reverted."""
HANGS: Final = "K12"
"""The process stops, its clocks do not, and it goes on hours later, if no return has ended it."""
ENDS: Final = ("K1", "K2", "K5", *MACHINES, HANGS)
"""What a process meets at a boundary: a kill, an interrupt, another process, a pause, a lock VM that is reverted, a
stop."""
SWARM: Final = (*CALLS, *SESSIONS, *TASKS, *VMS, *HOSTS, *SITES, *MISSING, *USERS, *KILLS)
OF_THE_PROCESS: Final = ("K2", *DISKS, "K5", "K10")
"""In nights of their own, beside whatever else there is."""
OF_GPUS: Final = ("G3", "G10")
"""In some nights, beside whatever else there is: a GPU serves another profile, or one size alone."""
NOW_AND_THEN: Final = ("T8", "A2", "A8", "G8")
"""In a few nights, beside whatever else there is."""
ALL: Final = (*SWARM, *OF_THE_PROCESS, *OF_GPUS, *NOW_AND_THEN, *MACHINES, *WITHDRAWN, HANGS)

SELDOM: Final = ("V13", "C7", "G11", "G12")
"""In a few nights, beside whatever else there is, and not in the table of coverage: a guest ignores a request to shut
down, vSphere HA starts a VM anew, and a host boots with another driver, or with GPUs of mixed sizes."""

OTHER_LOGIN: Final = "K13"
"""From some process on, gpuops logs in as another user: vCenter has its events and tasks under that name."""
OF_IDENTITY: Final = ("N9", "C8", "C9", "V14", OTHER_LOGIN)
"""In a few later nights, beside whatever else there is, and not in the table of coverage: a password changes, a
datastore goes away, a host is removed and added again, a VM is cloned, gpuops logs in as another user."""
FIRST_OF_IDENTITY: Final = 20_000
"""Nights of lower seeds were recorded, with mutants that they kill, before there were these faults."""

RARE: Final = ("H2", "H2", "H2", "V2", "V3", "C6", "N8")
"""Faults that often find no target: tried more often."""

NIGHT_S: Final = 10 * 3600


def schedule_of(seed: int, desktops: Sequence[str], ml: Sequence[str], hosts: Sequence[str]) -> tuple[Event, ...]:
    """The trouble of a seed in a world with these VMs and hosts, by name; one night in eight has none."""
    rng = random.Random(f"{seed}:trouble")
    if rng.randrange(8) == 0:
        return tuple(leases_of(seed))
    kinds = rng.sample(SWARM, rng.choice([1, 1, 2, 2, 3, 4, 6]))
    kinds += rng.choices(RARE, k=rng.choice([0, 0, 0, 1]))
    vms = [*desktops, *ml]
    swarm = [
        _event(fault, rng, vms, desktops, hosts) for fault in kinds for _ in range(rng.choice([1, 1, 1, 2, 4])) if vms
    ]
    beside = (*_of_the_process(seed), *epidemics_of(seed, desktops, ml), *_of_gpus(seed, hosts))
    seldom = (*_seldom(seed, vms, hosts), *of_identity(seed, vms, hosts))
    return (*swarm, *beside, *_now_and_then(seed, hosts), *leases_of(seed), *_hangs(seed), *seldom)


def _of_the_process(seed: int) -> list[Event]:
    """What befalls the process, its disk and its clock, three nights in eight."""
    rng = random.Random(f"{seed}:process")
    match rng.randrange(16):
        case 0:
            return [Event("K2", point=rng.randint(1, 60)) for _ in range(rng.choice([1, 1, 2]))]
        case 1:
            return [Event("K3", point=rng.randint(1, 160), at_s=rng.choice([1.0, 600.0, 7200.0, 86400.0]))]
        case 2 | 3:
            return [Event("K5", point=rng.randint(1, 60))]
        case 4:
            return [Event("K10", point=rng.choice([0, 0, rng.randint(1, 60)]), at_s=rng.choice([0.1, 0.5, 2.0]))]
        case 5:
            return _clock_set(rng)
        case _:
            return []


def _hangs(seed: int) -> list[Event]:
    """One night in twenty: the evening's run, or a return, stops somewhere."""
    rng = random.Random(f"{seed}:a run hangs")
    if rng.randrange(20):
        return []
    for_s = float(rng.choice([600, 3600, 4 * 3600, NIGHT_S - 3000, NIGHT_S, NIGHT_S + 7200]))
    half = rng.choice([RunKind.NIGHT, RunKind.NIGHT, RunKind.NIGHT, RunKind.DAY])
    return [Event(HANGS, target=half, point=rng.randint(1, 40), at_s=for_s)]


def _clock_set(rng: random.Random) -> list[Event]:
    """Somebody sets vCenter's clock while the night goes on, and perhaps sets it right again."""
    at_s, off_s = float(rng.randint(1, 600)), rng.choice([-86400, -3600, -90, 90, 3600, 86400])
    wrong = {"method": "*", "at_s": at_s, "delay_s": off_s}
    right = {"method": "*", "at_s": at_s + rng.choice([60, 600, 7200]), "delay_s": 0}
    return [Event("K7", rules_of("K7", shift)) for shift in rng.choice([(wrong,), (wrong, right)])]


def _event(fault: str, rng: random.Random, vms: Sequence[str], desktops: Sequence[str], hosts: Sequence[str]) -> Event:
    if fault in KILLS:
        return Event(fault, point=rng.randint(1, 60))
    if fault in USERS:
        at_s = float(rng.randint(600, NIGHT_S - 3600)) if fault == "H2" else _moment(rng)
        return Event(fault, target=rng.choice(desktops or vms), at_s=at_s)
    return Event(fault, rules_of(fault, _changes(fault, rng, vms, hosts)))


def _changes(fault: str, rng: random.Random, vms: Sequence[str], hosts: Sequence[str]) -> dict[str, Any]:
    """How the catalogue's rule is bent: at which call it strikes, or whom and when."""
    skip = rng.choice([0, 0, 1, 2, 3, 5, 8, 13, 21])
    if fault in CALLS:
        methods = READS if fault in ("T4", "T5") else (*EFFECTS, *READS)
        return {"method": rng.choice(methods), "skip": skip, "times": rng.choice([1, 1, 2, 3])}
    if fault in SESSIONS:
        return {
            "skip": 0 if fault == "N6" else skip,
            **({"times": rng.choice([1, 2, 20])} if fault in ("N5", "N6") else {}),
        }
    if fault in TASKS:
        return {"skip": skip, "times": rng.choice([1, 1, 2, 3])}
    if fault in MISSING:
        return {"target": rng.choice(vms), "skip": skip, "times": rng.choice([1, 2, 10])}
    if fault == "A12":
        return {"target": rng.choice(vms), "method": "RetrievePropertiesEx", "skip": skip}
    at = {"at_s": _moment(rng)} if rng.random() < 0.6 else {"skip": skip, "method": rng.choice(EFFECTS)}
    if fault in VMS:
        return {**at, "target": rng.choice(vms), "for_s": rng.choice([0, 60, 600])}
    if fault in HOSTS and fault != "G6":
        return {**at, "target": rng.choice(hosts), "for_s": rng.choice([0, 600, 7200])}
    if fault == "C5":
        return {**at, "for_s": rng.choice([0, 600])}
    if fault == "N8":
        return {**at, "for_s": rng.choice([600, 7200])}
    if fault == "K7":
        return {"delay_s": rng.choice([-3600, -90, -30, 30, 90, 3600]), "skip": rng.choice([0, 1, 1, 2])}
    return at if fault in ("T12", "T13", "N7") else {}


def _moment(rng: random.Random) -> float:
    """In the evening, when everything happens; at any time; or in the morning."""
    return float(rng.choice([rng.randint(1, 600), rng.randint(1, NIGHT_S), rng.randint(NIGHT_S - 600, NIGHT_S + 900)]))


def _of_gpus(seed: int, hosts: Sequence[str]) -> list[Event]:
    """One night in six, an ML VM meets a GPU that serves another profile, or a host gives up mixed sizes."""
    rng = random.Random(f"{seed}:gpus")
    match rng.randrange(24):
        case 0 | 1 | 2:
            return [Event("G3", rules_of("G3", {"skip": rng.choice([0, 0, 1, 2]), "times": rng.choice([1, 2])}))]
        case 3:
            return [Event("G10", rules_of("G10", {"target": rng.choice(hosts), "at_s": _moment(rng)}))]
        case _:
            return []


def _now_and_then(seed: int, hosts: Sequence[str]) -> list[Event]:
    """One night in six: a reply that drips, a change that another one overtakes, a start that is not attempted, another
    vGPU scheduler that waits for a host's next boot."""
    rng = random.Random(f"{seed}:now and then")
    skip, times = rng.choice([0, 0, 1, 2, 5]), rng.choice([1, 2, 3])
    match rng.randrange(24):
        case 0:
            return [Event("T8", rules_of("T8", {"method": rng.choice(READS), "skip": skip, "times": times}))]
        case 1:
            return [Event("A2", rules_of("A2", {"method": rng.choice(EFFECTS), "skip": skip, "times": times}))]
        case 2:
            return [Event("A8", rules_of("A8", {"skip": skip, "times": times}))]
        case 3:
            return [Event("G8", rules_of("G8", {"target": rng.choice(hosts), "at_s": _moment(rng)}))]
        case _:
            return []


def _seldom(seed: int, vms: Sequence[str], hosts: Sequence[str]) -> list[Event]:
    """One night in eight has one of these."""
    rng = random.Random(f"{seed}:seldom")
    if rng.randrange(8):
        return []
    fault = rng.choice(SELDOM)
    target = rng.choice(hosts if fault in ("G11", "G12") else vms)
    changes = {"target": target, "at_s": _moment(rng), "for_s": rng.choice([60, 600, 7200])}
    return [Event(fault, rules_of(fault, changes))]


def of_identity(seed: int, vms: Sequence[str], hosts: Sequence[str], one_in: int = 6) -> list[Event]:
    """One later night in six has one of these, or several."""
    rng = random.Random(f"{seed}:identity")
    if seed < FIRST_OF_IDENTITY or rng.randrange(one_in) or not vms:
        return []
    match rng.choice(OF_IDENTITY):
        case "V14":
            cloned = rng.sample(list(vms), min(len(vms), rng.choice([1, 2, 4, 8])))
            return [Event("V14", rules_of("V14", {"target": vm, "at_s": _moment(rng)})) for vm in cloned]
        case "C9":
            hosts_readded = rng.sample(list(hosts), rng.randint(1, len(hosts)))
            return [Event("C9", rules_of("C9", {"target": host, "at_s": _moment(rng)})) for host in hosts_readded]
        case "K13":
            return [Event(OTHER_LOGIN, point=rng.choice([1, 1, 1, 2, 3]))]
        case fault:
            changes = {"at_s": _moment(rng), "for_s": rng.choice([60, 600, 7200])}
            return [Event(fault, rules_of(fault, changes))]
