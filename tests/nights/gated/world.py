"""Worlds of gated nights: small sites, most of them full, whose desktops are machines of a simulated Horizon pod."""

from __future__ import annotations

import json
import random
from functools import lru_cache
from typing import Any, Final

from gpuops.config import policy
from gpuops.model.nights.rotation import Policy
from gpuops.sim.scenario.scenario_file import ScenarioFile
from tests.nights.gated.schedule import is_calm
from tests.nights.world.worlds import Site, Size, _full, _scenario, policies_read_quickly

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
    text = json.dumps({
        "version": 1,
        "name": "night",
        **({"broker": "horizon"} if gated else {}),
        "pools": [{"name": "office", "parked": not gated, "select": {"folder": "vdi", "name": OFFICE},
                   "idle": {"cpu_below_mhz": 500}, "floor": floor, "owner": "none"}],
        "ml": {"queue": [{"vm": f"ml-{number:02}"} for number in range(1, ml + 1)],
               "stop": {"grace_s": 120, "then": then}},
        "window": {"opens": "20:00", "closes": "06:00", "zone": "UTC"},
        "limits": {"in_flight": in_flight, "per_host": per_host},
        "drs_override": "none",
    })  # fmt: skip
    with policies_read_quickly():
        return policy.parse_policy(text, "night")
