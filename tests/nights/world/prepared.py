"""Prepared: a small site in whose nights every kind of step is sent, and in whose mornings VMs are wherever VMs can be.

Drawn worlds have what a seed gives them; a state that is rare there is here in every night. Two hosts with two GPUs
each, idle desktops, ML VMs of which two must move to another host and each stops in a way of its own, DRS that the
policy overrides, and desktops outside the policy.
"""

from __future__ import annotations

import random
from functools import lru_cache
from typing import Any, Final

from gpuops.model.nights.night_record import Role, marker_value
from gpuops.model.nights.rotation_policy import Policy
from gpuops.plan.rotation.taken_vms import Whereabouts
from gpuops.sim.fault_injection.rule import rules_of
from gpuops.sim.scenario.scenario_file import ScenarioFile
from tests.harness import office
from tests.nights.faults.event import ASKED_FOR, GIVEN_UP, Event
from tests.nights.world.session import GUEST_PASSWORD, GUEST_USER
from tests.nights.world.worlds import EVENING, GRACE_S, HOOK, LOCK, Site, Size, parse_night, pool

MARKER: Final = "gpuops.rotation"
STRAYS: Final = ("desktop-901", "desktop-902")
"""Marked, in a folder that no policy names; the first is suspended."""
_HOUR_S: Final = 3600.0
_OLD: Final = marker_value("2026-10-20", Role.DESKTOP)


def _group(number: int) -> dict[str, Any]:
    gpus = [office.gpu(at, node=node) for node, at in enumerate(("0000:3b:00.0", "0000:af:00.0"))]
    return office.hosts(1, gpus=gpus, first=number + 1, group=f"g{number}")


def _desktops(number: int, count: int) -> dict[str, Any]:
    numbered = {"name": "desktop-{:03}", "first": 1 + count * number, "count": count}
    return office.desktop(number, f"g{number}", **numbered, devices=[{"vgpu": "nvidia_a40-24q"}], power="fit")


def _ml(number: int, group: str, guest: str) -> dict[str, Any]:
    return office.ml_vm(number, group, guest=guest, disk_gib=100, extra_config={})


def _small(name: str, folder: str, **options: Any) -> dict[str, Any]:
    return office.small_vm(name, "g1", folder=folder, **options)


_SAVES: Final = {"id": "ubuntu64Guest", "name": "Ubuntu", "login": {"username": GUEST_USER, "password": GUEST_PASSWORD},
                 "programs": [{"path": HOOK, "takes_s": 40}]}  # fmt: skip
_VMS: Final = (
    _small("desktop-911", "lab", power="suspended"), _small("desktop-912", "lab", power="suspended"),
    _small("desktop-913", "lab", power="on"),
    _ml(1, "g0", "saves"), _ml(2, "g0", "bare"), _ml(3, "g0", "bare"), _ml(4, "g0", "ubuntu"),
)  # fmt: skip
_MARKED: Final = [
    _small(STRAYS[0], "lab", power="suspended", attributes={MARKER: _OLD}),
    _small(STRAYS[1], "lab", power="on", attributes={MARKER: _OLD}),
]


@lru_cache
def _declare_site(*, leased: bool, crowded: bool) -> ScenarioFile:
    desktops = 3 if crowded else 2
    further_vms = [*([_small(LOCK, "ops")] if leased else ()), *(_MARKED if crowded else ())]
    vms = [_desktops(0, desktops), _desktops(1, desktops), *_VMS, *further_vms]
    declared = office.scenario(
        vms, _group(0), _group(1), memory_gib=1024, guests={"saves": _SAVES}, drs="partiallyAutomated", start=EVENING
    )
    return ScenarioFile.of(declared)


@lru_cache
def _policy(in_flight: int, per_host: int, *, leased: bool) -> Policy:
    queue = [{"vm": f"ml-{number:02}", "relocate": True} for number in range(1, 5)]
    return parse_night(
        [pool("office", "desktop-*", floor=0, owner={"attribute": "gpuops.owner", "value": "office"})],
        {"queue": queue, "checkpoint": {"grace_s": GRACE_S, "hook": {"program": HOOK}},
         "stop": {"grace_s": 120, "then": "power-off"}},
        marker=MARKER,
        limits={"in_flight": in_flight, "per_host": per_host},
        drs_override="manual",
        **({"lock_vm": LOCK} if leased else {}),
    )  # fmt: skip


def prepared_site(seed: int, *, leased: bool, crowded: bool) -> Site:
    """The site, with the limits of a seed. `leased`: with a lock VM; `crowded`: with a third desktop on each host, and
    marked VMs that no journal knows and every morning names."""
    rng = random.Random(f"{seed}:prepared")
    policy = _policy(rng.choice([1, 2, 8]), rng.choice([1, 2, 4]), leased=leased)
    return Site(Size(2, 6 if crowded else 4, 4), _declare_site(leased=leased, crowded=crowded), policy)


def everywhere(rng: random.Random, *, asked_for: bool) -> list[Event]:
    """What happens at night so that in the morning there is a VM at each whereabouts, and stays there: a desktop was
    powered off, one deleted, one cannot be reached, one was given up, and one asks a question as it is resumed.

    `asked_for`: ML VMs are given up too, and what no return touches is asked for by name in the end.
    """
    numbers = rng.sample(range(1, 7), 5)
    off, deleted, unreachable, abandoned, asks = (f"desktop-{number:03}" for number in numbers)
    given_up = (abandoned, *(("ml-01", "ml-02", "ml-03") if asked_for else ()))
    by_name = [Event(ASKED_FOR, target=name, at_s=9.6 * _HOUR_S) for name in (*given_up, STRAYS[0])]
    return [
        Event("V7", rules_of("V7", {"target": off, "at_s": _HOUR_S})),
        Event("V4", rules_of("V4", {"target": deleted, "at_s": _HOUR_S})),
        Event("V5", rules_of("V5", {"target": unreachable, "at_s": _HOUR_S})),
        *(Event(GIVEN_UP, target=name, at_s=_HOUR_S) for name in given_up),
        Event("A9", rules_of("A9", {"target": asks, "method": "PowerOnVM_Task", "times": 1})),
        *(by_name if asked_for else ()),
    ]


PERSISTENT: Final = frozenset(
    {Whereabouts.LOST, Whereabouts.GONE, Whereabouts.FOREIGN, Whereabouts.GIVEN_UP, Whereabouts.UNKNOWN}
)
"""Where a VM stays all morning once it is there; some of a night's VMs are at the others for a while in any case."""
