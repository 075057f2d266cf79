"""The state of a simulated vCenter. It knows no type of managed object: `scenario.build` adds these."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any, Final
from uuid import UUID

from gpuops.sim.core.call import Call
from gpuops.sim.core.object_store import ObjectStore
from gpuops.sim.core.sim_clock import VIRTUAL_START, ClockMode
from gpuops.sim.fault_injection.injector import Injector
from gpuops.sim.fault_injection.rule import OutsideEvent
from gpuops.sim.guests.real_guests import RealGuests
from gpuops.sim.state.desktop_people import DesktopPoolState
from gpuops.sim.state.direct_path import DirectPathState
from gpuops.sim.vcenter.authority import Authority
from gpuops.sim.vcenter.events import Events
from gpuops.sim.vcenter.perf_counters import Provider
from gpuops.sim.vcenter.tagging import CustomFields, TagStore
from gpuops.sim.vcenter.tasks import Tasks

API_VERSION: Final = "8.0.3.0"

OPTIONS: Final[Mapping[str, Any]] = {
    "VirtualCenter.InstanceName": "vcenter.test",
    "VirtualCenter.FQDN": "vcenter.test",
    "event.maxAge": 30,
    "task.maxAge": 30,
    "vgpu.hotmigrate.enabled": False,
}
"""vgpu.hotmigrate.enabled: vMotion of a VM with a vGPU is refused until it is true (VMware, vGPU and vMotion)."""


class World(ObjectStore):
    """The managed objects, with the tasks, events, permissions, tags, settings and fault rules of one vCenter."""

    def __init__(
        self,
        *,
        seed: int = 0,
        clock: ClockMode = ClockMode.STEPPED,
        start: datetime = VIRTUAL_START,
        api_version: str = API_VERSION,
        outside_events: Mapping[str, OutsideEvent],
    ) -> None:
        super().__init__(seed=seed, clock=clock, start=start, api_version=api_version)
        self.injector = Injector(self, seed, outside_events)
        self.guests = RealGuests(self.clock.now, self.changed)
        """The processes and files of guests, where a scenario says that they are real."""
        self.busy = lambda: self.guests.busy
        self.tasks = Tasks(self, self.injector)
        self.events = Events(self, self.tasks)
        self.authority = Authority()
        self.custom_fields = CustomFields(self.registry)
        self.options: dict[str, Any] = dict(OPTIONS)
        """vCenter's advanced settings by key, such as `vgpu.hotmigrate.enabled`."""
        self.counters: Provider = lambda entity, moment: {}
        """Returns the values of an entity's performance counters at a time."""
        self.new_host: Callable[[Any, str], Any] | None = None
        """Returns a new host with this name for a compute resource; None = no host can be added."""
        self.tags = TagStore(self._new_uuid, self._record_tag, self._is_there)
        self.direct_path = DirectPathState()
        """DirectPath profiles and their reservations (vCenter 9.0 and newer)."""
        self.desktop_pools: tuple[DesktopPoolState, ...] = ()
        """The desktop pools of a simulated connection broker, if one is served with this vCenter."""
        self.deviations: set[str] = set()
        """Ids of the assumptions that this vCenter violates (`scenario/deviations.py`)."""
        self.state_hooks: tuple[Callable[[], Any], Callable[[Any], None]] | None = None
        """(save, restore) of the inventory's state as JSON values, if its builder offers them."""
        self.change_certificate: Callable[[], None] | None = None
        """Changes the server's certificate; None = the server has no such function."""

    def _new_uuid(self) -> UUID:
        return UUID(int=self.rng.getrandbits(128), version=4)

    def _is_there(self, target: tuple[str, str]) -> bool:
        """Whether there is an object of this type and moid."""
        managed = self.find(target[1])
        return managed is not None and managed.wsdl_name == target[0]

    def _record_tag(self, operation: str, target: tuple[str, str], tag_id: str) -> None:
        """Write an attached or detached tag to the ledger."""
        call = self.current_call or Call(method=operation, version="")
        entity = self.find(target[1])
        if entity is not None:
            attached = operation == "attach"
            before, after = ([], [tag_id]) if attached else ([tag_id], [])
            self.ledger.record(call, entity, before={"tags": before}, after={"tags": after}, method=operation)
