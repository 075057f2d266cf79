"""Worlds: from a seed, a vCenter in the evening and the policy of its night.

The sizes are fixed here, so that nights per minute mean something: half of the worlds have at most 4 hosts and 12
desktops, one in fifty is of full size (40 hosts, 200 desktops, 30 ML VMs), the others lie between.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from fnmatch import fnmatchcase
from functools import lru_cache
from typing import Any, Final
from unittest.mock import patch

from gpuops.config import policy
from gpuops.model.nights.rotation_policy import Policy, Pool
from gpuops.sim.scenario.build import build_declared
from gpuops.sim.scenario.scenario_file import ScenarioFile
from gpuops.sim.world import World
from tests.harness import office
from tests.nights.at_once.several import Several, several_of
from tests.nights.world.session import GUEST_PASSWORD, GUEST_USER

EVENING: Final = datetime(2026, 11, 2, 20, 0, tzinfo=UTC)
DAY: Final = timedelta(days=1)
CLOSES: Final = EVENING + timedelta(hours=10)
YESTERDAY: Final = "2026-11-01"
FULL: Final = 50
"""One world in so many is of full size."""

_ADDRESSES: Final = ("0000:3b:00.0", "0000:5e:00.0", "0000:af:00.0", "0000:d8:00.0")
_DESKTOPS: Final = ("nvidia_a40-8q", "nvidia_a40-8q", "nvidia_a40-12q", "nvidia_a40-24q")
_SIZES: Final = ("nvidia_a40-24q", "nvidia_a40-8q")
LOCK: Final = "gpuops-lock"
LEASED: Final = 4
"""One world in so many has a lock VM."""
STRICT: Final = 6
"""In one world in so many a desktop that is renamed is out of the pattern of its pool."""
WHOLE_GPUS: Final = 12
"""In one world in so many, each desktop has a GPU by DirectPath I/O, and gives it up by shutting down."""
BY_TURNS: Final = 12
"""In one world in so many, desktops of these two sizes come by turns."""
_IDLE: Final = {"cpu_usage_mhz": 60}
_LARGE_BAR: Final = {"extra_config": office.MMIO}
_WINDOWS: Final = {
    "UTC": ("20:00", "06:00"),
    "Asia/Kolkata": ("01:30", "11:30"),
    "America/New_York": ("15:00", "01:00"),
}
"""One and the same night by the clocks of several zones."""
HOOK: Final = "/opt/save"
GRACE_S: Final = 240
"""What the policy gives a hook."""
_KEEPERS: Final = {
    name: {"id": "ubuntu64Guest", "name": "Ubuntu", "login": {"username": GUEST_USER, "password": GUEST_PASSWORD},
           "programs": programs}
    for name, programs in {
        "saves": [{"path": HOOK, "takes_s": 40}],
        "saves-slowly": [{"path": HOOK, "takes_s": GRACE_S - 5}],
        "fails": [{"path": HOOK, "takes_s": 5, "exit_code": 3}],
        "hangs": [{"path": HOOK, "takes_s": None}],
        "has-none": [],
    }.items()
}  # fmt: skip
"""Guests by what their hook does; a guest that is not listed accepts no login."""
_ML: Final = ("nvidia_a40-48c", "nvidia_a40-48c", "nvidia_a40-24c")


@dataclass(frozen=True, slots=True)
class Size:
    """How much there is."""

    hosts: int
    desktops: int
    ml: int


@dataclass(frozen=True, slots=True)
class Site:
    """What a seed comes to."""

    size: Size
    declared: ScenarioFile
    policy: Policy
    """The whole rotation: every pool and every ML VM that is played."""
    several: Several = Several.NONE
    split: tuple[Policy, ...] = ()
    """The policies that are played, each a part of the whole; none = the whole is."""

    @property
    def policies(self) -> tuple[Policy, ...]:
        """The policies that are played."""
        return self.split or (self.policy,)

    @property
    def pools(self) -> tuple[Pool, ...]:
        """Every pool that is played, of whatever policy."""
        return tuple(pool for policy in self.policies for pool in policy.pools)

    def pool_of(self, name: str) -> Pool | None:
        """The pool of a desktop by the name that it had in the evening."""
        return next((pool for pool in self.pools if fnmatchcase(name, pool.select.name or "*")), None)

    def world(self, seed: int) -> World:
        world = build_declared(self.declared, seed=seed)
        if self.policy.lock_vm is not None:  # `rotate init` has been at it
            for name in (self.policy.marker, "gpuops.opt-out", "gpuops.owner"):
                world.custom_fields.define(name)
        return world


def size_of(seed: int, rng: random.Random) -> Size:
    """Small for even seeds, full for one in fifty, between for the rest."""
    if seed % 2 == 0:
        return Size(rng.randint(1, 4), rng.choice([*range(13), *[12] * 24]), rng.randint(4, 6))
    if seed % FULL == 1:
        return Size(40, 200, 30)
    return Size(rng.randint(2, 8), rng.randint(12, 40), rng.randint(3, 8))


def site_of(seed: int, size: Size | None = None) -> Site:
    """The site of a seed, or of a seed in another size; the same for the same seed and commit."""
    rng = random.Random(f"{seed}:site")
    size = size or size_of(seed, rng)
    hooks = random.Random(f"{seed}:hooks")
    has_hooks = hooks.random() < 0.3
    scenario = _scenario(size, rng, hooks if has_hooks else None)
    whole_gpus = size.desktops > 0 and random.Random(f"{seed}:whole GPUs").randrange(WHOLE_GPUS) == 0
    if whole_gpus:
        scenario = _full(scenario, size, passthrough=True)
    elif random.Random(f"{seed}:sizes").randrange(BY_TURNS) == 0:
        scenario = _by_turns(scenario)
    leased = is_leased(seed)
    if leased:
        scenario["vms"].append(_lock_vm(scenario))
    scenario["busy"] = random.Random(f"{seed}:busy").choice(["queue", "refuse"])
    _noted_by_others(scenario, seed)
    several = several_of(seed, leased=leased)
    terms = _terms(size, rng, hooked=has_hooks, leased=leased)
    terms["directpath"] = "shut-down-guest" if whole_gpus else "leave"
    parts = ("first", "second") if several in (Several.POLICIES, Several.APART) else ()
    strict = random.Random(f"{seed}:strict").randrange(STRICT) == 0
    whole = _parse_terms(**terms, part="two pools" if several is Several.POOLS else "strict" if strict else "whole")
    split = tuple(_parse_terms(**terms, part=part) for part in parts)
    return Site(size, ScenarioFile.of(scenario), whole, several, split)


def arrange_site(
    seed: int,
    size: Size,
    *,
    leased: bool = False,
    hooked: bool = False,
    floor: int = 0,
    in_flight: int = 1,
    per_host: int = 2,
    then: str = "power-off",
    relocate: int | None = None,
    left_over: int = 0,
    full: bool = False,
    directpath: str = "leave",
    passthrough: bool = False,
    shared: str = "",
) -> Site:
    """A site of a seed whose policy is given; `left_over` of its desktops carry the marker of yesterday's night.
    `full`: each GPU holds two idle desktops, and each ML VM that starts needs the room of both. `passthrough`: each GPU
    is given to one idle desktop whole, as any of its kind, and each ML VM needs one so. `shared`: what the policy says
    of teams, as JSON; each ML VM belongs to one of those, or to none."""
    rng, hooks = random.Random(f"{seed}:site"), random.Random(f"{seed}:hooks")
    scenario = _scenario(size, rng, hooks if hooked else None)
    if full or passthrough:
        scenario = _full(scenario, size, passthrough=passthrough)
    if shared:
        scenario["vms"] = _of_teams(scenario["vms"], [*json.loads(shared)["teams"], ""], random.Random(f"{seed}:teams"))
    if left_over:
        scenario["vms"] = _left_over(scenario["vms"], left_over, random.Random(f"{seed}:left over"))
    if leased:
        scenario["vms"].append(_lock_vm(scenario))
    _noted_by_others(scenario, seed)
    policy = _parse_terms(floor=floor, owner=rng.random() < 0.7, ml=size.ml, relocate=relocate, then=then,
                    in_flight=in_flight, per_host=per_host, zone="UTC", drs="none", hooked=hooked,
                    leased=leased, part="whole", directpath=directpath, shared=shared)  # fmt: skip
    return Site(size, ScenarioFile.of(scenario), policy)


def _of_teams(vms: list[dict[str, Any]], teams: list[str], rng: random.Random) -> list[dict[str, Any]]:
    """The same VMs, each ML VM with the team that it is of."""
    drawn = [(vm, rng.choice(teams) if vm["folder"] == "ml" else "") for vm in vms]
    return [{**vm, "attributes": {"team": team}} if team else vm for vm, team in drawn]


def _full(scenario: dict[str, Any], size: Size, *, passthrough: bool) -> dict[str, Any]:
    """The same with as many GPUs as idle desktops need, two on each, or one on each by DirectPath I/O, and ML VMs that
    each need a whole one."""
    [group, *_] = scenario["clusters"][0]["hosts"]
    gpus = -(-size.desktops // ((1 if passthrough else 2) * size.hosts))
    group |= {"count": size.hosts, "policy": "consolidation",
              "gpus": [{"board": "a40", "at": at, "node": int(n > 1), "mode": "sameSize", "passthrough": passthrough}
                       for n, at in enumerate(_ADDRESSES[:gpus])]}  # fmt: skip
    scenario["clusters"][0]["hosts"] = [group]
    any_gpu = [{"dynamic": {"boards": ["a40"]}}]
    whole = {"on": group["group"], "devices": any_gpu if passthrough else [{"vgpu": "nvidia_a40-48c"}],
             **(_LARGE_BAR if passthrough else {})}  # fmt: skip
    ml = [vm | whole for vm in scenario["vms"] if vm["folder"] == "ml"]
    desktops = {"name": "desktop-{:03}", "first": 1, "count": size.desktops, "folder": "vdi", "on": group["group"],
                "guest": "windows", "cpus": 4, "memory_gib": 8, "disk_gib": 80,
                "devices": any_gpu if passthrough else [{"vgpu": "nvidia_a40-24q"}],
                **(_LARGE_BAR if passthrough else {}), "power": "fit",
                "attributes": {"gpuops.owner": "office"}, **_IDLE}  # fmt: skip
    store = {"name": "ds-1", "capacity_gib": 65536, "free_gib": 65536}
    return {**scenario, "vms": [desktops, *ml], "datastores": [store]}


def _noted_by_others(scenario: dict[str, Any], seed: int) -> None:
    """Give VMs of half of the worlds a custom attribute of another tool."""
    if random.Random(f"{seed}:noted").random() < 0.5:
        for vm in scenario["vms"]:
            vm["attributes"] = {**vm.get("attributes", {}), "site.cost-centre": "4711"}


def _left_over(vms: list[dict[str, Any]], number: int, rng: random.Random) -> list[dict[str, Any]]:
    """The same VMs, with so many desktops that yesterday's night of another machine has marked: some are suspended,
    the others as they were."""
    vms_out: list[dict[str, Any]] = []
    for vm in vms:
        if vm["folder"] != "vdi":
            vms_out.append(vm)
            continue
        for number_of_vm in range(vm["first"], vm["first"] + vm["count"]):
            single = {**vm, "first": number_of_vm, "count": 1}
            if number and "gpuops.opt-out" not in single["attributes"] and rng.random() < 0.4:
                number -= 1
                single["attributes"] = {**single["attributes"], "gpuops.rotation": f"{YESTERDAY} desktop"}
                single["power"] = rng.choice(["suspended", "suspended", single["power"]])
            vms_out.append(single)
    return vms_out


def is_leased(seed: int) -> bool:
    """Whether the world of a seed has a lock VM."""
    return random.Random(f"{seed}:lease").randrange(LEASED) == 0


def _lock_vm(scenario: dict[str, Any]) -> dict[str, Any]:
    group = scenario["clusters"][0]["hosts"][0]["group"]
    return office.small_vm(LOCK, group, folder="ops")


def _scenario(size: Size, rng: random.Random, hooks: random.Random | None) -> dict[str, Any]:
    groups = _groups(size.hosts, rng)
    names = [group["group"] for group in groups]
    free_gib = rng.choice([65536] * 9 + [200])
    drs = rng.choice(["partiallyAutomated", "manual", None])
    vms = [*_desktops(size, names, rng), *_ml(size, names, rng, hooks)]
    store = {"name": "ds-1", "capacity_gib": 65536, "free_gib": free_gib}
    return office.scenario(vms, *groups, memory_gib=1024, guests=_KEEPERS, drs=drs, start=EVENING, datastores=[store])


def _by_turns(scenario: dict[str, Any]) -> dict[str, Any]:
    """The same with two GPUs a host, given out in turn, and idle desktops of two sizes, one after the other: each host
    has a GPU of either size, and only the right order brings all of them back."""
    for group in scenario["clusters"][0]["hosts"]:
        group["policy"] = "performance"
        group["gpus"] = [{"board": "a40", "at": at, "node": node} for node, at in enumerate(_ADDRESSES[:2])]
    vms: list[dict[str, Any]] = []
    for vm in scenario["vms"]:
        if vm["folder"] != "vdi":
            vms.append({**vm, "devices": [{"vgpu": "nvidia_a40-48c"}]})
            continue
        for number in range(vm["first"], vm["first"] + vm["count"]):
            turned = {"first": number, "count": 1, "devices": [{"vgpu": _SIZES[number % len(_SIZES)]}]}
            vms.append({**vm, **turned, **(_IDLE if vm["power"] == "fit" else {})})
    return {**scenario, "vms": vms}


def _groups(hosts: int, rng: random.Random) -> list[dict[str, Any]]:
    """One or two kinds of hosts: their GPUs in same size or mixed size, given out either way."""
    split = rng.randint(0, hosts - 1) if hosts > 1 else 0
    groups, first = [], 1
    for number, count in enumerate(group_size for group_size in (hosts - split, split) if group_size):
        mode = "mixedSize" if rng.random() < 0.2 else "sameSize"
        addresses = _ADDRESSES[: rng.choice([1, 1, 2, 2, 4])]
        gpus = [office.gpu(at, node=int(place > 1), mode=mode) for place, at in enumerate(addresses)]
        chosen = rng.choice(["performance", "consolidation"])
        groups.append(office.hosts(count, gpus=gpus, first=first, group=f"g{number}", policy=chosen))
        first += count
    return groups


def _desktops(size: Size, groups: list[str], rng: random.Random) -> list[dict[str, Any]]:
    """Desktops of one or several profiles, most of them idle; each kind of reason not to take one, now and then."""
    desktops, desktops_left, number = [], size.desktops, 1
    for group in groups:
        profile_of_all, share = (
            rng.choice(_DESKTOPS),
            desktops_left if group == groups[-1] else rng.randint(0, desktops_left),
        )
        several = rng.random() < 0.3
        desktops_left -= share
        while share:
            kind = _kind(rng)
            count = rng.randint(1, share) if kind == _IDLE else 1
            profile = rng.choice(_DESKTOPS) if several else profile_of_all
            desktops.append({"name": "desktop-{:03}", "first": number, "count": count, "folder": "vdi", "on": group,
                          "guest": "windows", "cpus": 4, "memory_gib": rng.choice([8, 16]), "disk_gib": 80,
                          "devices": [{"vgpu": profile}], "power": "fit",
                          "attributes": {"gpuops.owner": "office"}, **kind})  # fmt: skip
            number, share = number + count, share - count
    return desktops


def _kind(rng: random.Random) -> dict[str, Any]:
    match rng.randint(0, 14):
        case 0:
            return {"cpu_usage_mhz": 4000}
        case 1:
            return {"console_connections": 1}
        case 2:
            return {"attributes": {"gpuops.owner": "office", "gpuops.opt-out": "yes"}}
        case 3:
            return {"power": rng.choice(["off", "suspended"])}
        case _:
            return _IDLE


def _ml(size: Size, groups: list[str], rng: random.Random, hooks: random.Random | None) -> list[dict[str, Any]]:
    """ML VMs; with `hooks`, where VMware Tools run, their guests keep their work each in its own way."""

    def guest() -> str:
        guest_os = rng.choice(["ubuntu", "bare"])
        return hooks.choice([*_KEEPERS, "ubuntu"]) if hooks is not None and guest_os == "ubuntu" else guest_os

    return [
        office.ml_vm(
            number,
            rng.choice(groups),
            guest=guest(),
            disk_gib=100,
            devices=[{"vgpu": rng.choice(_ML)}],
            extra_config={},
        )
        for number in range(1, size.ml + 1)
    ]


def _terms(size: Size, rng: random.Random, *, hooked: bool, leased: bool) -> dict[str, Any]:
    """What the policy of a world says."""
    return {
        "floor": rng.choice([0, 0, 1, 3]),
        "owner": rng.random() < 0.7,
        "ml": size.ml,
        "relocate": rng.choice([None, 0, 1, 2]),
        "then": rng.choice(["power-off", "power-off", "leave-running"]),
        "in_flight": rng.choice([1, 2, 8]),
        "per_host": rng.choice([1, 2, 4]),
        "zone": rng.choice(list(_WINDOWS)),
        "drs": rng.choice(["none", "none", "none", "manual"]),
        "hooked": hooked,
        "leased": leased,
    }


_POOLS: Final[dict[str, dict[str, str]]] = {
    "whole": {"office": "desktop-*"},
    "strict": {"office": "desktop-[0-9][0-9][0-9]"},
    "two pools": {"office": "desktop-*[02468]", "cad": "desktop-*[13579]"},
    "first": {"office": "desktop-*[02468]"},
    "second": {"cad": "desktop-*[13579]"},
}
"""Name and name pattern of the pools of a policy, by what part of the whole it is."""


@lru_cache(maxsize=4096)
def _parse_terms(
    *,
    floor: int,
    owner: bool,
    ml: int,
    relocate: int | None,
    then: str,
    in_flight: int,
    per_host: int,
    zone: str,
    drs: str,
    hooked: bool,
    leased: bool,
    part: str,
    directpath: str = "leave",
    shared: str = "",
) -> Policy:
    """`part`: of the whole, all of it in one pool, by any name or by a strict one, or in two pools, or one of two
    policies that have half of it each."""
    own = {"owner": {"attribute": "gpuops.owner", "value": "office"} if owner else "none"}
    pools = [
        pool(name, pattern, floor=floor, priority=priority, directpath=directpath, **own)
        for priority, (name, pattern) in enumerate(_POOLS[part].items())
    ]
    numbers = {"first": range(1, ml + 1, 2), "second": range(2, ml + 1, 2)}.get(part, range(1, ml + 1))
    opens, closes = _WINDOWS[zone]
    return parse_night(
        pools,
        {"queue": [{"vm": f"ml-{number:02}", "relocate": number % 4 != relocate} for number in numbers],
         **({"checkpoint": {"grace_s": GRACE_S, "hook": {"program": HOOK}}} if hooked else {}),
         "stop": {"grace_s": 120, "then": then}},
        name="other" if part == "second" else "night",
        window={"opens": opens, "closes": closes, "zone": zone},
        limits={"in_flight": in_flight, "per_host": per_host},
        drs_override=drs,
        **({"lock_vm": LOCK} if leased else {}),
        **({"fair_share": json.loads(shared)} if shared else {}),
    )  # fmt: skip


def pool(name: str, pattern: str, **keys: Any) -> dict[str, Any]:
    """The desktops of such names, as a policy has them; `keys` are keys of the pool."""
    select = {"folder": "vdi", "name": pattern}
    return {"name": name, "parked": True, "select": select, "idle": {"cpu_below_mhz": 500}, **keys}


def parse_night(pools: list[dict[str, Any]], ml: dict[str, Any], **keys: Any) -> Policy:
    """The policy of a night from eight in the evening to six in the morning; `keys` are top-level keys."""
    window = {"opens": "20:00", "closes": "06:00", "zone": "UTC"}
    written = {"version": 1, "name": "night", "pools": pools, "ml": ml, "window": window, **keys}
    with policies_read_quickly():
        return policy.parse_policy(json.dumps(written), "night")


@contextmanager
def policies_read_quickly() -> Iterator[None]:
    """JSON is YAML too, and is read a hundred times as fast."""
    with patch.object(policy, "parse_yaml", lambda written, name: json.loads(written)):
        yield
