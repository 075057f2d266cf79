"""A night in one situation: what all of them share."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from typing import Any, Final

from gpuops.sim.fault_injection.rule import Effect, Rule
from gpuops.sim.objects.virtual_machine import VirtualMachine
from tests.nights.faults.event import Event
from tests.nights.playing.night import Nightly
from tests.nights.playing.played import Played
from tests.nights.world.worlds import Site, Size, arrange_site

SOMETHING: Final = Rule(Effect.HAPPEN, happening="vm.used")
"""The method under which foreign changes are recorded here."""
LATER: Final = timedelta(minutes=25)


class Situated(Nightly):
    """A night in the situation that its class is about."""

    size = Size(3, 12, 6)
    policy: Mapping[str, Any] = {}
    """What is not as usual about the site."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(f"{seed}:{type(self).__name__}")
        site = self.place(seed)
        super().__init__(seed, self.events(site), site)
        self._in_the_morning = site.policy

    def place(self, seed: int) -> Site:
        return arrange_site(seed, self.size, **self.policy)

    def events(self, site: Site) -> Sequence[Event]:
        """What goes wrong; an event without rules and target says only that something does."""
        return ()

    def arrange(self) -> None:
        """Before the evening."""

    def met(self, before: bool, step: str, name: str) -> None:
        """Before and after each request, and each append to the journal (`append`)."""

    def _play_night(self) -> Played:
        with self.world.lock:
            self.arrange()
        return super()._play_night()

    def _boundary(self, point: str) -> None:
        super()._boundary(point)
        when, step, *name = point.split()
        if name and name[-1] == "append":
            step = "append"
        self.met(when == "before", step, name[-1] if name else "")

    def named(self, name: str) -> VirtualMachine | None:
        return next((vm for vm in self.world.by_type("VirtualMachine") if vm.name == name), None)

    def desktops(self) -> list[VirtualMachine]:
        return [vm for vm in self.world.by_type("VirtualMachine") if vm.name.startswith("desktop-")]

    def at(self, after_s: float, act: Callable[[], object]) -> None:
        self.world.clock.schedule(after_s, act, background=True)
