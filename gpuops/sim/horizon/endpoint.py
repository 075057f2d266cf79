"""The REST API of the simulated Horizon Connection Server: login, refresh, logout, lists by pages, maintenance.

Names and values by the pages that `gpuops.broker.horizon_values` and `gpuops.broker.horizon` cite, written apart.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import parse_qs, urlsplit

from gpuops.files.file import NOT_PARSED, parse_json
from gpuops.sim.horizon.pod import MachineRecord, Pod, VcenterList
from gpuops.sim.state.vm_state import Power
from gpuops.sim.wire.handler import Incoming, Outgoing

if TYPE_CHECKING:
    from gpuops.sim.inventory.entities import VmEntity
    from gpuops.sim.state.desktop_people import DesktopPoolState
    from gpuops.sim.world import World

DOMAIN: Final = "VSPHERE"
"""Of the one user, whose name and password are those of the simulated vCenter."""
VERSION: Final = "8.15.0"
ACCESS_VALID: Final = timedelta(minutes=30)
LARGEST_PAGE: Final = 1000
_POWER: Final = {Power.ON: "POWERED_ON", Power.OFF: "POWERED_OFF", Power.SUSPENDED: "SUSPENDED"}


class HorizonEndpoint:
    """The paths below /rest of one simulated Connection Server."""

    def __init__(self, world: World, pod: Pod, username: str, password: str) -> None:
        self.world, self.pod = world, pod
        self.gzip = False
        self._login = username, password
        self._access: dict[str, datetime] = {}
        """Access tokens, and until when they are valid."""
        self._refresh: set[str] = set()
        self._lists: dict[str, Callable[[], Iterator[dict[str, Any]]]] = {
            "/rest/inventory/v5/desktop-pools": self._pools,
            "/rest/inventory/v1/machines": self._machines,
            "/rest/inventory/v1/sessions": self._sessions,
        }

    @property
    def logins(self) -> int:
        """How many logins have not been logged out."""
        return len(self._refresh)

    def end_access(self) -> None:
        """Every access token ends now, as it does after its time."""
        self._access.clear()

    def serve(self, incoming: Incoming) -> Outgoing:
        """The reply to one HTTP request."""
        with self.world.lock:
            self.world.clock.take_request()
            if self.pod.down:
                return _json(503, {})
            try:
                return self._serve(incoming)
            except NOT_PARSED:
                return _json(400, {"error_message": "the request cannot be read"})

    def _serve(self, incoming: Incoming) -> Outgoing:
        path = urlsplit(incoming.target).path
        if incoming.verb == "POST" and path in ("/rest/login", "/rest/refresh", "/rest/logout"):
            return self._authenticate(path.rpartition("/")[2], parse_json(incoming.body))
        token = incoming.headers.get("authorization", "").removeprefix("Bearer ")
        # an unknown token is treated as one that expires now
        if self._access.get(token, self.world.clock.now()) <= self.world.clock.now():
            return _json(401, {"error_message": "the access token is not valid"})
        if incoming.verb == "GET" and path in self._lists:
            return self._page(list(self._lists[path]()), incoming.target)
        if incoming.verb == "GET" and path == "/rest/config/v2/environment-properties":
            return _json(200, {"cluster_name": "sim-pod", "local_connection_server_version": VERSION})
        if incoming.verb == "GET" and path == "/rest/config/v2/virtual-centers":
            return self._vcenters()
        prefix, _, last_segment = path.rpartition("/")
        if incoming.verb == "GET" and prefix == "/rest/inventory/v1/machines":
            machine = next((candidate for candidate in self._machines() if candidate["id"] == last_segment), None)
            return _json(404, {"error_message": "no such machine"}) if machine is None else _json(200, machine)
        actions = {"enter-maintenance": True, "exit-maintenance": False}
        if incoming.verb == "POST" and prefix == "/rest/inventory/v1/machines/action" and last_segment in actions:
            return self._maintain(parse_json(incoming.body), enter=actions[last_segment])
        return _json(404, {"error_message": "no such path"})

    def _vcenters(self) -> Outgoing:
        if self.pod.vcenter_list is VcenterList.FORBIDDEN:
            return _json(403, {"error_message": "VC_CONFIG_VIEW is needed"})
        listed = [
            {"id": identity, "display_name": name, **({"instance_uuid": uuid} if uuid else {})}
            for identity, name, uuid in self.pod.vcenters()
        ]
        return _json(200, listed)

    def _authenticate(self, operation: str, request_json: Any) -> Outgoing:
        if operation == "login":
            if (request_json["username"], request_json["password"]) != self._login or str(
                request_json["domain"]
            ).upper() != DOMAIN:
                return _json(401, {"error_message": "Unable to authenticate."})
            refresh = secrets.token_urlsafe(32)
            self._refresh.add(refresh)
            return _json(200, {"access_token": self._new_access(), "refresh_token": refresh})
        if request_json["refresh_token"] not in self._refresh:
            return _json(401, {"error_message": "the refresh token is not valid"})
        if operation == "refresh":
            return _json(200, {"access_token": self._new_access()})
        self._refresh.discard(request_json["refresh_token"])
        self._access.clear()  # of all clients: it is not stored which login an access token comes from
        return Outgoing(200)

    def _new_access(self) -> str:
        token = secrets.token_urlsafe(32)
        self._access[token] = self.world.clock.now() + ACCESS_VALID
        return token

    def _page(self, records: list[dict[str, Any]], target: str) -> Outgoing:
        query = parse_qs(urlsplit(target).query)
        number = int(query.get("page", ["1"])[0])
        size = min(LARGEST_PAGE, int(query.get("size", [str(LARGEST_PAGE)])[0]))
        if number < 1 or size < 1:
            return _json(400, {"error_message": "page and size are greater than 0"})
        page = records[(number - 1) * size : number * size]
        headers = {"HAS_MORE_RECORDS": "TRUE"} if number * size < len(records) else {}
        return _json(200, page, headers)

    def _maintain(self, machine_ids: Any, *, enter: bool) -> Outgoing:
        if not isinstance(machine_ids, list):
            return _json(400, {"error_message": "a list of machine ids is expected"})
        outcomes = []
        for identity in machine_ids:
            vm = self.pod.machine(identity)
            if vm is None:
                outcomes.append({"id": identity, "status_code": 404, "error_messages": ["no such machine"]})
                continue
            self.pod.change_maintenance(vm, enter=enter)
            outcomes.append({"id": identity, "status_code": 200, "timestamp": _ms(self.world.clock.now())})
        return _json(200, outcomes)

    # --- lists ----------------------------------------------------------------------------------------------------

    def _pools(self) -> Iterator[dict[str, Any]]:
        for pool in self.world.desktop_pools:
            is_instant_clone = pool.source == "INSTANT_CLONE"
            yield {
                "id": self.pod.pool_id(pool),
                "name": pool.name,
                "display_name": pool.name,
                "enabled": True,
                "type": pool.type,
                "source": pool.source,
                **({"pattern_naming_settings": _naming(pool)} if pool.type == "AUTOMATED" else {}),
                "session_settings": {
                    "power_policy": pool.power_policy,
                    "delete_or_refresh_machine_after_logoff": "DELETE" if is_instant_clone else "NEVER",
                },
            }

    def _machines(self) -> Iterator[dict[str, Any]]:
        for record in self.pod.records():
            session = self.pod.shown_session(record.vm) if record.vm is not None else None
            yield {
                "id": record.id,
                "name": record.name,
                "dns_name": record.name if not record.managed else f"{record.name}.vdi.test",
                "desktop_pool_id": self.pod.pool_id(record.pool),
                "type": "MANAGED_VIRTUAL_MACHINE" if record.managed else "UNMANAGED_MACHINE",
                "state": self._state(record.vm),
                **({"session_id": session.id} if session is not None else {}),
                "user_ids": [],
                **({"managed_machine_data": self._managed_machine_data(record)} if record.managed else {}),
            }

    def _managed_machine_data(self, record: MachineRecord) -> dict[str, Any]:
        record_json = {"path": record.path, "virtual_center_id": record.vcenter}
        return {
            **{name: value for name, value in record_json.items() if value is not None},
            "in_maintenance_mode": record.vm is not None and self._shows_maintenance(record.vm),
            "virtual_machine_power_state": "POWERED_ON" if record.vm is None else _POWER[record.vm.state.power],
        }

    def _shows_maintenance(self, vm: VmEntity) -> bool:
        hides = "broker-maintenance" in self.world.deviations  # assumption: broker-maintenance
        return self.pod.in_maintenance(vm) and not (hides and vm.state.power is not Power.ON)

    def _state(self, vm: VmEntity | None) -> str:
        if vm is None:
            return "AVAILABLE"
        session = self.pod.session_of(vm)
        if self._shows_maintenance(vm):
            return "MAINTENANCE"
        if vm.moid in self.pod.without_agent:
            return "AGENT_UNREACHABLE"
        if session is None:
            return "AVAILABLE" if vm.state.power is Power.ON else "AGENT_UNREACHABLE"
        return "DISCONNECTED" if session.disconnected_at else "CONNECTED"

    def _sessions(self) -> Iterator[dict[str, Any]]:
        pools: dict[str, DesktopPoolState] = {vm.moid: pool for pool, vm in self.pod.machines()}
        for session in self.pod.sessions.values():
            if not session.vm.is_registered or self.pod.shown_session(session.vm) is None:
                continue
            yield {
                "id": session.id,
                "machine_id": self.pod.machine_id(session.vm),
                "desktop_pool_id": self.pod.pool_id(pools[session.vm.moid]) if session.vm.moid in pools else None,
                "session_type": "DESKTOP",
                "session_state": "DISCONNECTED" if session.disconnected_at else "CONNECTED",
                "start_time": _ms(session.started_at),
                **({"disconnected_time": _ms(session.disconnected_at)} if session.disconnected_at else {}),
                "idle_duration": 0,
                "user_id": session.user,
            }


def _naming(pool: DesktopPoolState) -> dict[str, Any]:
    return {"naming_pattern": f"{pool.name}-{{n}}", "number_of_spare_machines": pool.spare_machines}


def _ms(moment: datetime) -> int:
    return int(moment.timestamp() * 1000)


def _json(status: int, document: Any, headers: dict[str, str] | None = None) -> Outgoing:
    return Outgoing(status, json.dumps(document).encode(), "application/json", headers=headers or {})
