"""Wire: the same nights over TLS sockets, by our own client: pyVmomi for what changes, our reader for what is read."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, Final
from unittest.mock import patch

from gpuops.errors import GpuopsError
from gpuops.execute.site.ports import Vcenter
from gpuops.model.vcenter.inventory import Inventory
from gpuops.model.vcenter.task import TaskRef
from gpuops.plan.core.steps import Step
from gpuops.sim.fault_injection.rule import Effect
from gpuops.sim.server import SimServer
from gpuops.vsphere.connection import Connection
from gpuops.vsphere.transport import network
from gpuops.vsphere.waiting import updates
from tests.canary import CANARY
from tests.nights.faults.event import Event
from tests.nights.playing.night import Nightly
from tests.nights.playing.played import Played
from tests.nights.world.guests import LOGIN
from tests.wire.conftest import target_of

NOT_HERE: Final = frozenset({"T13"})
"""Another certificate is for good here: no later process would get in."""

SILENCE_S: Final = 0.3
"""What a client waits in real seconds for a reply that a fault keeps back; a virtual half minute would be a real one.
Where no fault does, it has all of its own patience: a busy machine is not a fault of vCenter."""

SILENT: Final = frozenset({Effect.HANG, Effect.DRIP})


class WireNightly(Nightly):
    """The night of a seed over the wire."""

    def __init__(self, seed: int, events: Sequence[Event] | None = None) -> None:
        super().__init__(seed, events)
        self._server: SimServer | None = None

    def play(self) -> Played:
        """The whole night; the world's lock is the server's between two of its own acts."""
        kept_back = any(rule.effect in SILENT for event in self.played.events for rule in event.rules)
        with (
            _impatient(SILENCE_S if kept_back else network.SILENCE_S),
            SimServer(self.world, password=CANARY) as self._server,
        ):
            return self._play()

    def _connect(self, boundary: Callable[[str], None]) -> Vcenter:
        assert self._server is not None
        return Watched(Connection(replace(target_of(self._server), guest=LOGIN)), boundary, self._asked, self._refused)


class Watched:
    """A connection that can be cut off before and after each change; anything else is the connection's own."""

    def __init__(
        self,
        connection: Connection,
        boundary: Callable[[str], None],
        asked: Callable[[str], None] = lambda op_id: None,
        refused: Callable[[str], None] = lambda fault: None,
    ) -> None:
        self._connection = connection
        self._boundary = boundary
        self._asked = asked
        self._refused = refused

    def __getattr__(self, name: str) -> Any:
        return getattr(self._connection, name)

    @property
    def uuid(self) -> str:
        return self._connection.uuid

    @property
    def applied(self) -> bool | None:
        return self._connection.applied

    def submit(self, step: Step, inventory: Inventory, op_id: str) -> TaskRef | None:
        name = inventory.vm(step.vm).name
        self._boundary(f"before {type(step).__name__} {name}")
        self._asked(op_id)
        try:
            return self._connection.submit(step, inventory, op_id)
        except GpuopsError as error:
            self._refused(type(error.__cause__).__name__.rpartition(".")[2])
            raise
        finally:
            self._boundary(f"after {type(step).__name__} {name}")


@contextmanager
def _impatient(silence_s: float) -> Iterator[None]:
    with patch.object(network, "SILENCE_S", silence_s), patch.object(updates, "PAUSES_S", (0.0, 0.0, 0.0, 0.0)):
        yield


def play_on_the_wire(seed: int) -> Played:
    """The night of a seed, with all of its trouble that can be had on a wire."""
    events = [event for event in Nightly(seed).played.events if event.fault not in NOT_HERE]
    return WireNightly(seed, events).play()
