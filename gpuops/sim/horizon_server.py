"""The simulated Horizon Connection Server: the pools, machines and sessions of a pod, and their REST API."""

from __future__ import annotations

import json
import random
import secrets
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import parse_qs, urlsplit
from uuid import NAMESPACE_URL, UUID, uuid5

from gpuops.files.file import NOT_PARSED, parse_json
from gpuops.sim.core.inventory_tree import unescaped
from gpuops.sim.core.object_store import somebody
from gpuops.sim.fault_injection.rule import Effect, Rule
from gpuops.sim.outside_events import vm_events
from gpuops.sim.state.desktop_people import RecordForm
from gpuops.sim.state.vm_state import Power
from gpuops.sim.wire.handler import Incoming, Outgoing

if TYPE_CHECKING:
    from gpuops.sim.inventory.entities import VmEntity
    from gpuops.sim.state.desktop_people import DesktopPoolState
    from gpuops.sim.world import World


class VcenterList(StrEnum):
    """How a pod lists its vCenters."""

    WITH_UUIDS = "with-uuids"
    WITHOUT_UUIDS = "without-uuids"
    FORBIDDEN = "forbidden"
    """The account may not read them."""
    OLD_UUID = "old-uuid"
    """The vCenter was rebuilt: the pod knows it by the uuid that it had before."""
    COPIED = "copied"
    """The second vCenter is a copy of the first, with its uuid."""


@dataclass(frozen=True, slots=True)
class MachineRecord:
    """What the server's list shows about a machine, except its state."""

    id: str
    name: str
    path: str | None
    vcenter: str | None
    """Id of its vCenter."""
    pool: DesktopPoolState
    vm: VmEntity | None
    """None = its VM is in another vCenter, or is gone."""
    managed: bool = True


def record_of(form: RecordForm, identity: str, pool: DesktopPoolState, vm: VmEntity, vcenter: str) -> MachineRecord:
    """Return the pod's record of a machine, with the deviation from vCenter that `form` names."""
    name, path = vm.name, inventory_path(vm)
    folder = path.rpartition("/")[0]
    match form:
        case RecordForm.NO_PATH:
            return MachineRecord(identity, name, None, vcenter, pool, vm)
        case RecordForm.OTHER_CASE:
            return MachineRecord(identity, name.upper(), path.upper(), vcenter, pool, vm)
        case RecordForm.UNESCAPED:
            return MachineRecord(identity, unescaped(name), unescaped(path), vcenter, pool, vm)
        case RecordForm.RENAMED:
            return MachineRecord(identity, f"{name}-earlier", f"{folder}/{name}-earlier", vcenter, pool, vm)
        case RecordForm.MOVED:
            return MachineRecord(identity, name, f"{folder}/earlier/{name}", vcenter, pool, vm)
        case RecordForm.NO_VCENTER:
            return MachineRecord(identity, name, path, None, pool, vm)
        case RecordForm.UNMANAGED:
            return MachineRecord(identity, f"{name}.vdi.test", None, None, pool, vm, managed=False)
        case _:
            return MachineRecord(identity, name, path, vcenter, pool, vm)


def inventory_path(vm: VmEntity) -> str:
    """Return the inventory path of a VM from the datacenter down, such as `/DC0/vm/desktops/vdi-001`."""
    names, ancestor = [vm.name], vm.world.find(vm.parent or "")
    # the root folder has no parent and is not part of the path
    while ancestor is not None and getattr(ancestor, "parent", None):
        names.append(ancestor.display_name)
        ancestor = vm.world.find(str(getattr(ancestor, "parent", "")))
    return "/" + "/".join(reversed(names))


ALWAYS_ON: Final = "ALWAYS_POWERED_ON"
POWER_CHECK_S: Final = 60.0
"""Seconds between two checks of the power policy (an assumption; Horizon documents none)."""
SESSION_LENGTH_S: Final = (300.0, 7200.0)
"""The shortest and the longest time that a user stays logged in."""
USER_PREFIX: Final = "S-1-5-21-1111111111-2222222222-3333333333-"
_EMPTY_RULE: Final = Rule(Effect.HAPPEN)
"""For outside events that the pod causes itself, without a fault rule."""


@dataclass(slots=True)
class PodSession:
    """A user at a machine."""

    id: str
    vm: VmEntity
    user: str
    started_at: datetime
    disconnected_at: datetime | None = None


@dataclass(slots=True)
class Pod:
    """A simulated pod. The caller holds the world's lock."""

    world: World
    seed: int = 0
    sessions: dict[str, PodSession] = field(default_factory=dict)
    maintenance: set[str] = field(default_factory=set)
    """Instance uuids of the VMs whose machines are in maintenance."""
    without_agent: set[str] = field(default_factory=set)
    """Moids of the VMs whose agent does not answer, although they run."""
    refused_logins: list[str] = field(default_factory=list)
    """Names of the machines that a user did not get."""
    down: bool = False
    """It answers 503 from now on (fault H5)."""
    forms: dict[str, RecordForm] = field(default_factory=dict)
    """How the records of these VMs (moids) name them, where it is not as their pool declares."""
    vcenter_list: VcenterList = VcenterList.WITH_UUIDS
    second_vcenter: bool = False
    """Whether the pod has another vCenter, with the same folders, and a machine for each of these names there."""
    _pool_names: dict[str, str] = field(default_factory=dict)
    """The pool of each VM (moid) that has been a machine: one that is renamed stays in its pool."""
    _rng: random.Random = field(init=False)

    def __post_init__(self) -> None:
        self._rng = random.Random(self.seed)  # noqa: S311 - reproducible choices, no secrets
        for pool, vm in list(self.machines()):
            if vm.state.power is Power.ON and (vm.state.cpu_usage_mhz >= 1000 or vm.state.console_connections):
                self.log_in(pool, vm)
        for pool in self.world.desktop_pools:
            if pool.logins_per_hour:
                self._schedule_next_login(pool)
            if pool.power_policy == ALWAYS_ON or pool.spare_machines:
                self._schedule_power_check(pool)

    def machines(self) -> Iterator[tuple[DesktopPoolState, VmEntity]]:
        """Each VM that is a machine of a pool, with the first pool that has it."""
        for vm in self.world.by_type("VirtualMachine"):
            pool_name = self._pool_names.get(vm.moid)
            pool = next(
                (pool for pool in self.world.desktop_pools if pool.name == pool_name or pool.has(unescaped(vm.name))),
                None,
            )
            if pool is not None:
                self._pool_names[vm.moid] = pool.name
                yield pool, vm

    def records(self) -> Iterator[MachineRecord]:
        """Yield the server's records of machines in all vCenters of the pod; `vm` is None if it is not in this one."""
        for pool, vm in self.machines():
            form, identity = self.forms.get(vm.moid, pool.records), self.machine_id(vm)
            yield record_of(form, identity, pool, vm, self.vcenter_id(1))
            if form is RecordForm.TWICE:
                left_over = self._id("left-over", vm.state.instance_uuid)
                yield replace(record_of(form, left_over, pool, vm, self.vcenter_id(1)), vm=None)
            if self.second_vcenter or pool.second_vcenter:
                second_id = self._id("second", vm.state.instance_uuid)
                record = record_of(RecordForm.AS_IN_VCENTER, second_id, pool, vm, self.vcenter_id(2))
                yield replace(record, vm=None)

    def vcenters(self) -> Iterator[tuple[str, str, str | None]]:
        """Yield (id, name, instance uuid or None) of each vCenter of the pod, as the server lists them."""
        instance_uuid = self.world.get("ServiceInstance").instance_uuid
        other_uuid = self._id("uuid", "other")
        uuids = {
            VcenterList.OLD_UUID: (self._id("uuid", "earlier"), other_uuid),
            VcenterList.COPIED: (instance_uuid, instance_uuid),
        }
        first, second = uuids.get(self.vcenter_list, (instance_uuid, other_uuid))
        has_uuids = self.vcenter_list is not VcenterList.WITHOUT_UUIDS
        yield self.vcenter_id(1), "vc-1", first if has_uuids else None
        if self.second_vcenter or any(pool.second_vcenter for pool in self.world.desktop_pools):
            yield self.vcenter_id(2), "vc-2", second if has_uuids else None

    def vcenter_id(self, number: int) -> str:
        return self._id("vcenter", str(number))

    def pool_id(self, pool: DesktopPoolState) -> str:
        """Return the pool's id, which is the same in every run, as in Horizon."""
        return self._id("pool", pool.name)

    def machine_id(self, vm: VmEntity) -> str:
        return self._id("machine", self._identity(vm))

    def _identity(self, vm: VmEntity) -> str:
        """Return what identifies a machine: its VM's instance uuid, so that a recreated VM is another machine."""
        by_name = "broker-new-machine" in self.world.deviations  # assumption: broker-new-machine
        return vm.name if by_name else vm.state.instance_uuid

    def machine(self, identity: str) -> VmEntity | None:
        """The VM of a machine's id."""
        return next((vm for _, vm in self.machines() if self.machine_id(vm) == identity), None)

    def session_of(self, vm: VmEntity) -> PodSession | None:
        return next((session for session in self.sessions.values() if session.vm is vm), None)

    def shown_session(self, vm: VmEntity) -> PodSession | None:
        """The session that the lists of machines and sessions have: also while the agent does not answer."""
        # assumption: broker-no-agent
        hidden = "broker-no-agent" in self.world.deviations and vm.moid in self.without_agent
        return None if hidden else self.session_of(vm)

    def in_maintenance(self, vm: VmEntity) -> bool:
        return self._identity(vm) in self.maintenance

    # --- users ----------------------------------------------------------------------------------------------------

    def log_in(self, pool: DesktopPoolState, vm: VmEntity) -> PodSession | None:
        """Log a user in to the machine and return the session.

        None = the login is refused: the machine is in maintenance, in use, or not powered on. In the last case it is
        started for a later login.
        """
        if self.in_maintenance(vm) or self.session_of(vm) is not None:
            self.refused_logins.append(vm.name)
            return None
        if vm.state.power is not Power.ON:
            vm_events.power_on(vm, _EMPTY_RULE)  # the task takes time, and vCenter may refuse it
            self.refused_logins.append(vm.name)
            return None
        number = self._rng.randrange(1000, 10_000)
        session = PodSession(self._uuid(), vm, f"{USER_PREFIX}{number}", self.world.clock.now())
        self.sessions[session.id] = session
        vm_events.use_desktop(vm, _EMPTY_RULE)
        self.world.clock.schedule(
            self._rng.uniform(*SESSION_LENGTH_S), lambda: self.log_off(pool, session), background=True
        )
        return session

    def disconnect(self, session: PodSession) -> None:
        """Mark a session as disconnected: the user has closed the client, and the session stays."""
        session.disconnected_at = self.world.clock.now()

    def log_off(self, pool: DesktopPoolState, session: PodSession) -> None:
        """End a session; an instant clone is then recreated."""
        if self.sessions.pop(session.id, None) is None or not session.vm.is_registered:
            return
        session.vm.state.cpu_usage_mhz, session.vm.state.guest_users = 60, ()
        session.vm.touch("summary")
        if pool.source == "INSTANT_CLONE":
            vm_events.recreate(session.vm, _EMPTY_RULE)

    def _schedule_next_login(self, pool: DesktopPoolState) -> None:
        """Schedule the login of a user to any free machine of the pool, and then the next login."""

        def log_in_next_user() -> None:
            free = [vm for machine_pool, vm in self.machines() if machine_pool is pool and self.session_of(vm) is None]
            if free:
                self.log_in(pool, self._rng.choice(free))
            self._schedule_next_login(pool)

        self.world.clock.schedule(
            self._rng.expovariate(pool.logins_per_hour / 3600.0), log_in_next_user, background=True
        )

    # --- the power policy -----------------------------------------------------------------------------------------

    def _schedule_power_check(self, pool: DesktopPoolState) -> None:
        """Schedule the next check: it starts all machines of an ALWAYS_ON pool, else as many as are to be spare."""

        def check() -> None:
            vms_of_pool = [
                vm for machine_pool, vm in self.machines() if machine_pool is pool and not self.in_maintenance(vm)
            ]
            spare_count = sum(vm.state.power is Power.ON and self.session_of(vm) is None for vm in vms_of_pool)
            for vm in vms_of_pool:
                can_start = vm.state.power is not Power.ON and self.world.tasks.running(vm) is None
                if can_start and (pool.power_policy == ALWAYS_ON or spare_count < pool.spare_machines):
                    vm_events.power_on(vm, _EMPTY_RULE)
                    spare_count += 1
            self._schedule_power_check(pool)

        self.world.clock.schedule(POWER_CHECK_S, check, background=True)

    # --- maintenance ----------------------------------------------------------------------------------------------

    def change_maintenance(self, vm: VmEntity, *, enter: bool) -> None:
        """Put the machine into maintenance or take it out, and record a change in the ledger."""
        before, identity = self.in_maintenance(vm), self._identity(vm)
        if enter:
            self.maintenance.add(identity)
        else:
            self.maintenance.discard(identity)
        if before is not enter:
            call = somebody(self.world, "enter-maintenance" if enter else "exit-maintenance")
            self.world.ledger.record(call, vm, before={"gated": before}, after={"gated": enter})

    def _id(self, kind: str, name: str) -> str:
        return str(uuid5(NAMESPACE_URL, f"gpuops-sim-horizon:{kind}:{name}"))

    def _uuid(self) -> str:
        return str(UUID(int=self._rng.getrandbits(128), version=4))


DOMAIN: Final = "VSPHERE"
"""The domain of the only user, whose name and password are those of the simulated vCenter."""
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
        """Refresh tokens of the clients that have logged in and not logged out."""
        self._lists: dict[str, Callable[[], Iterator[dict[str, Any]]]] = {
            "/rest/inventory/v5/desktop-pools": self._pools,
            "/rest/inventory/v1/machines": self._machines,
            "/rest/inventory/v1/sessions": self._sessions,
        }

    @property
    def logins(self) -> int:
        """The number of clients that have logged in and not logged out."""
        return len(self._refresh)

    def end_access(self) -> None:
        """Make every access token invalid now, as if it had expired."""
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
        """Route a request: logins without a token, everything else with a valid access token."""
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
            return _json(403, {"error_message": "the account needs the privilege VC_CONFIG_VIEW"})
        listed = [
            {"id": identity, "display_name": name, **({"instance_uuid": uuid} if uuid else {})}
            for identity, name, uuid in self.pod.vcenters()
        ]
        return _json(200, listed)

    def _authenticate(self, operation: str, request_json: Any) -> Outgoing:
        """Reply to login, refresh or logout; a login returns an access token and a refresh token."""
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
        """Put machines into or out of maintenance; the reply has one outcome for each id."""
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
        """Yield the desktop pools in the form of the Horizon REST API."""
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
        """Yield the machines in the form of the Horizon REST API."""
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
        """Yield the sessions in the form of the Horizon REST API."""
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
