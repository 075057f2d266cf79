"""Gated nights by seed: small sites, most of them full, whose desktops are machines of a simulated Horizon pod; which
users come when; and the broker's faults.

The names are the rows of the fault catalogue: H1 a user between check and suspend, H2 one whose desktop is suspended,
H3 machines that come back by themselves, H4 a machine that is made anew, H5 a broker that is away, slow, or answers
wrongly, H6 gates that a killed run has left closed (every kill is one).
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final

from gpuops.model.nights.rotation_policy import Policy
from gpuops.sim.horizon_server import VcenterList
from gpuops.sim.scenario.scenario_file import ScenarioFile
from gpuops.sim.state.desktop_people import RecordForm
from tests.nights.world.worlds import Site, Size, _full, _scenario, parse_night, pool

NIGHT_S: Final = 10 * 3600
EVENING_S: Final = 900
"""In which the night takes what it takes."""

USERS: Final = ("logon", "rdp")
"""At a moment: by the broker, or straight to the guest."""
AIMED_USERS: Final = ("logon after a look", "rdp after a look", "slow logon before a gate")
"""Just after gpuops has read the list of sessions, or just before a gate takes effect: the list has that session some
seconds later."""
AWAY: Final = ("away", "slow", "login refused", "server error")
LISTS: Final = ("stale sessions", "stale machines", "stale lists", "partial sessions", "partial machines")
REPLIES: Final = ("lost close", "lost open", "unheard close", "unheard open", "late close", "late open", "refused")
"""The reply of a change is lost: it was made, it never arrives, or is made later; or it is refused."""
OTHERS: Final = ("admin closes", "admin closes after a look", "admin opens", "always on", "made anew")
FORMS: Final = {f"{form} machine": form for form in RecordForm if form is not RecordForm.AS_IN_VCENTER}
"""From a moment on the record of a machine names its VM in another way."""
VCENTERS: Final = {f"vCenters {vcenter_list}": vcenter_list for vcenter_list in VcenterList}
"""From a moment on the broker has a second vCenter of the same folders, and tells its vCenters in this way."""
NAMES: Final = (*FORMS, *VCENTERS)
KINDS: Final = (*USERS, *AIMED_USERS, *AWAY, *LISTS, *REPLIES, *OTHERS, *NAMES)
ROW: Final = {
    **dict.fromkeys((*AIMED_USERS, "rdp"), "H1"),
    "logon": "H2",
    "always on": "H3",
    "admin opens": "H3",
    "made anew": "H4",
    **dict.fromkeys((*AWAY, *LISTS, *REPLIES, *NAMES), "H5"),
    **dict.fromkeys(("admin closes", "admin closes after a look"), "H6"),
}


@dataclass(frozen=True, slots=True)
class Trouble:
    """One thing that somebody does, or that is wrong with the broker."""

    kind: str
    at_s: float = 0.0
    """After the evening; of what strikes a call, from when on it may."""
    for_s: float = 0.0
    """How long it is so; how late, or how old."""
    target: str = ""
    """A desktop by name."""
    skip: int = 0
    """So many calls, or reads, are let pass first."""


def is_calm(seed: int) -> bool:
    """Whether nothing is wrong in the night of a seed but that people come: such nights are measured."""
    return seed % 8 == 0


def schedule_of(seed: int, desktops: Sequence[str]) -> tuple[Trouble, ...]:
    """Return the users who come and the broker's faults in the night of a seed."""
    rng = random.Random(f"{seed}:gated")
    people = [
        Trouble("logon", at_s=_moment(rng), target=rng.choice(desktops)) for _ in range(rng.choice([0, 1, 2, 4, 8]))
    ]
    people += [  # who is there already, or just comes
        Trouble("logon", at_s=rng.uniform(0, 40), target=rng.choice(desktops)) for _ in range(rng.choice([0, 0, 1, 2]))
    ]
    people += [
        Trouble("rdp", at_s=_moment(rng), for_s=rng.uniform(60, 7200), target=rng.choice(desktops))
        for _ in range(rng.choice([0, 0, 1, 2]))
    ]
    if is_calm(seed):
        return tuple(people)
    for kind in rng.choices(AIMED_USERS, k=rng.choice([0, 1, 1, 3])):
        people.append(Trouble(kind, for_s=rng.choice([0.5, 2, 8]), skip=rng.choice([0, 1, 2, 3, 5, 8, 13])))
    if rng.randrange(8) == 0:  # it is unknown whether a user came while the desktop was being suspended
        people.append(Trouble(AIMED_USERS[2], for_s=8, skip=rng.choice([0, 1, 2])))
        people.append(Trouble(rng.choice(["away", "server error"]), at_s=rng.uniform(8, 40), for_s=90))
    kinds = rng.sample((*AWAY, *LISTS, *LISTS, *REPLIES, *REPLIES, *OTHERS), rng.choice([0, 1, 2, 3, 5]))
    troubles = [_of(kind, rng, desktops) for kind in kinds for _ in range(rng.choice([1, 1, 2, 3]))]
    return (*people, *troubles, *_other_names(seed, desktops))


def _other_names(seed: int, desktops: Sequence[str]) -> list[Trouble]:
    """In one night of three the broker and vCenter do not agree on machines; users come there as to any other."""
    rng = random.Random(f"{seed}:machine names")
    if rng.randrange(3):
        return []
    kinds = rng.choices((*FORMS, rng.choice(tuple(VCENTERS))), k=rng.choice([1, 2, 4]))
    return [
        Trouble(kind, at_s=rng.choice([0, 0, _moment(rng)]), target=rng.choice(desktops))
        for kind in kinds
        for _ in range(rng.choice([1, 3]) if kind in FORMS else 1)
    ]


def _of(kind: str, rng: random.Random, desktops: Sequence[str]) -> Trouble:
    target = rng.choice(desktops)
    match kind:
        case "away" | "slow" | "login refused" | "server error":
            return Trouble(kind, at_s=_moment(rng), for_s=rng.choice([20, 90, 400, 3600]), skip=rng.choice([0, 1, 4]))
        case "stale sessions" | "stale machines" | "stale lists":
            return Trouble(kind, at_s=_soon(rng), for_s=rng.choice([5, 30, 120, 600]), skip=rng.choice([0, 1, 2, 4]))
        case "partial sessions" | "partial machines":
            return Trouble(kind, at_s=_soon(rng), for_s=rng.choice([1, 60, 1200]), skip=rng.choice([0, 1, 2, 4]))
        case "late close" | "late open":
            late_s = rng.choice([5, 20, 120, 500])
            return Trouble(kind, at_s=_from(rng, kind), for_s=late_s, skip=rng.choice([0, 0, 1, 2, 4, 7]))
        case _ if kind in REPLIES:
            return Trouble(kind, at_s=_from(rng, kind), skip=rng.choice([0, 0, 1, 2, 4, 7]))
        case "admin closes after a look":
            return Trouble(kind, skip=rng.choice([0, 1, 2, 2, 3, 5, 8]))
        case _:
            return Trouble(kind, at_s=_moment(rng), target=target)


def _from(rng: random.Random, kind: str) -> float:
    return float(rng.choice([0, NIGHT_S - 4000])) if kind.endswith("open") or kind == "refused" else 0.0


def _soon(rng: random.Random) -> float:
    """At any moment, and most often while the night takes."""
    return rng.choice([rng.uniform(0, 40), _moment(rng)])


def called_off_s(seed: int) -> float | None:
    """Return the seconds after the evening at which an admin runs `rotate day` in the night of a seed; None if no one
    does.
    """
    rng = random.Random(f"{seed}:called off")
    return rng.uniform(30, 400) if not is_calm(seed) and rng.randrange(5) == 0 else None


def _moment(rng: random.Random) -> float:
    """In the evening, at night, or when desktops come back."""
    return float(
        rng.choice(
            [
                rng.randint(0, 60),
                rng.randint(0, 240),
                rng.randint(0, EVENING_S),
                rng.randint(0, NIGHT_S),
                rng.randint(NIGHT_S - 3620, NIGHT_S - 3000),
            ]
        )
    )


OFFICE: Final = "desktop-*"
KIOSK: Final = 4
"""In one world in so many, half of the desktops are in a pool whose machines are kept on."""


def gated_site(seed: int, *, gated: bool = True) -> Site:
    """The site of a seed; the same for the same seed and commit. Not `gated`: its pool is declared parked instead."""
    rng = random.Random(f"{seed}:gated site")
    size = Size(rng.randint(1, 3), rng.randint(6, 14), rng.randint(3, 7))
    scenario: dict[str, Any] = _scenario(size, rng, None)
    if rng.random() < 0.8:
        scenario = _full(scenario, size, passthrough=False)
    scenario["busy"] = rng.choice(["queue", "refuse"])
    kiosk = rng.randrange(KIOSK) == 0 and not is_calm(seed)
    pools = [{"name": "kiosk", "vms": ["desktop-*[13579]"], "power_policy": "ALWAYS_POWERED_ON"}] if kiosk else []
    scenario["desktop_pools"] = [*pools, {"name": "office", "vms": [OFFICE]}]
    policy = _policy(
        gated=gated,
        ml=size.ml,
        floor=rng.choice([0, 0, 0, 1]),
        in_flight=rng.choice([1, 2, 8]),
        per_host=rng.choice([1, 2, 4]),
        then=rng.choice(["power-off", "leave-running"]),
    )
    return Site(size, ScenarioFile.of(scenario), policy)


@lru_cache(maxsize=256)
def _policy(*, gated: bool, ml: int, floor: int, in_flight: int, per_host: int, then: str) -> Policy:
    return parse_night(
        [pool("office", OFFICE, parked=not gated, floor=floor, owner="none")],
        {"queue": [{"vm": f"ml-{number:02}"} for number in range(1, ml + 1)], "stop": {"grace_s": 120, "then": then}},
        limits={"in_flight": in_flight, "per_host": per_host},
        drs_override="none",
        **({"broker": "horizon"} if gated else {}),
    )
