"""The services of the vSphere Automation API, as its two wires call them: `json_rpc.py` and `rest.py`.

Both authenticate against the same vCenter account as SOAP does, and get a `vmware-api-session-id`.
"""

from __future__ import annotations

from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from gpuops.sim.vcenter.vapi_values import Struct, VapiFault, operation_not_found
from gpuops.sim.wire.automation import inventory_reads
from gpuops.sim.wire.automation.direct_path_devices import DEVICES, TASKS, DirectPathDevices
from gpuops.sim.wire.automation.power import POWER, PowerService

if TYPE_CHECKING:
    from gpuops.sim.core.sessions import ClientSession
    from gpuops.sim.world import World

SESSION: Final = "com.vmware.cis.session"
ERRORS: Final = "com.vmware.vapi.std.errors"


class VapiServices:
    """Sessions, tags, reads of the inventory, the power of VMs and DirectPath devices of one simulated vCenter."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._inventory = inventory_reads.InventoryReads(world)
        self._power = PowerService(world, partial(self._inventory.one, inventory_reads.BY_PATH["vm"]))
        self._devices = DirectPathDevices(world, partial(self._inventory.one, inventory_reads.BY_PATH["host"]))

    def log_in(self, user: str, password: str) -> str:
        """The id of a new session. Raises VapiFault of kind unauthenticated."""
        sessions = self._world.sessions
        if not sessions.accepts(user, password):
            raise VapiFault("unauthenticated", "Authentication required.")
        session = sessions.open(user)
        if self._world.current_call is not None:
            self._world.current_call.opened = session
        return session.cookie

    def invoke(self, session_id: str, service: str, operation: str, parameters: object) -> Any:
        """The result of one operation in a session, made of Struct, list, str, int, bool and None. Raises VapiFault.

        A bug of the simulator is kept as one, and told as internal_server_error.
        """
        session = self.require_session(session_id)
        try:
            if service == SESSION:
                return self._of_session(session, operation)
            if service in inventory_reads.BY_NAME:
                reads = inventory_reads.BY_NAME[service]
                return self._inventory.invoke(reads, operation, parameters, session.user)
            if service == POWER:
                return self._power.invoke(session, operation, parameters)
            if service in (DEVICES, TASKS) and self._devices.offered:
                return self._devices.invoke(session, service, operation, parameters)
            return self._world.tags.invoke(service, operation, parameters)
        except VapiFault:
            raise
        except Exception as bug:
            self._world.record_bug(bug)
            raise VapiFault("internal_server_error", "The simulated vCenter could not carry the call out.") from bug

    def require_session(self, session_id: str) -> ClientSession:
        """The session of that id, which is in use from now on. Raises VapiFault of kind unauthenticated."""
        session = self._world.sessions.find(session_id)
        if session is None:
            raise VapiFault("unauthenticated", "This method requires authentication.")
        session.active_at = self._world.clock.now()
        call = self._world.current_call
        if call is not None:
            call.session = session  # the ledger then knows who attached a tag
        return session

    def _of_session(self, session: ClientSession, operation: str) -> Any:
        match operation:
            case "delete":
                self._world.sessions.close(session)
                return None
            case "get":
                times = {"created_time": _stamp(session.login_at), "last_accessed_time": _stamp(session.active_at)}
                return Struct(f"{SESSION}.info", {"user": session.user, **times})
            case _:
                raise operation_not_found(SESSION, operation)


def _stamp(moment: datetime) -> str:
    return moment.isoformat(timespec="milliseconds")[:23] + "Z"
