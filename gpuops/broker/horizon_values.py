"""Decodes what a Horizon Connection Server sends into pools, machines and sessions. No user's name is read.

Fields by the pages of the Horizon Server API (developer.broadcom.com, developer.omnissa.com): SessionInfo (2012),
ManagedMachineData to V3 (8.0.0, 2111, 2312), DesktopPoolInfo and V5 (2312), DesktopPoolSessionSettingsV3,
EnvironmentInfoV2 (2103, 2309), BulkItemResponseInfo. From memory: the words of `type` and `source` of a pool, that
`idle_duration` is in minutes, as `disconnected_session_timeout_minutes` is, and `session_id` of a machine (the View API
has a SessionId in its MachineBase, 2306). VirtualCenterInfoV2 (2103, 2312) has `instance_uuid`, ManagedMachineData
(8.0.0) `virtual_center_id`. Of spare machines, DesktopPoolInfoV5 shows `number_of_spare_machines` within
`pattern_naming_settings`, and DesktopPoolVirtualMachineSpecifiedNamingSettings (2012, 2312)
`num_unassigned_machines_kept_powered_on`. No page shows a machine with the managed object id or the uuid of its VM:
`path`, "the virtual machine path", and the name are what there is.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, Final, TypeVar

from gpuops.files.file import NOT_PARSED, parse_json
from gpuops.model.desktops.broker import (
    AfterLogoff,
    BrokerVcenter,
    DesktopMachine,
    DesktopPool,
    DesktopPowerPolicy,
    DesktopSession,
    PoolKind,
    SessionState,
)

LONGEST_TEXT: Final = 1024
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MOST_MS: Final = 253_402_300_800_000
"""The year 10000."""
_POWER: Final = {
    "TAKE_NO_POWER_ACTION": DesktopPowerPolicy.NONE,
    "ALWAYS_POWERED_ON": DesktopPowerPolicy.ALWAYS_ON,
    "SUSPEND": DesktopPowerPolicy.SUSPEND,
    "POWER_OFF": DesktopPowerPolicy.POWER_OFF,
}
_LOGOFF: Final = {"NEVER": AfterLogoff.NOTHING, "REFRESH": AfterLogoff.REFRESH, "DELETE": AfterLogoff.DELETE}
_STATES: Final = {
    "CONNECTED": SessionState.CONNECTED,
    "DISCONNECTED": SessionState.DISCONNECTED,
    "PENDING": SessionState.PENDING,
}
_KINDS: Final = {"AUTOMATED": PoolKind.AUTOMATED, "MANUAL": PoolKind.MANUAL}
_OF_VCENTER: Final = frozenset({"VIRTUAL_CENTER", "VIEW_COMPOSER", "LINKED_CLONE", ""})

UNREADABLE: Final = (AttributeError, *NOT_PARSED)
"""What decoding raises for a reply that no Connection Server sends."""

_Kind = TypeVar("_Kind")


def parsed(body: bytes) -> Any:
    """The JSON of a reply. Raises ValueError."""
    return parse_json(body.decode("utf-8"))


def listed(body: bytes) -> list[Mapping[str, Any]]:
    """The objects of a reply that is a list. Raises ValueError."""
    found = parsed(body)
    if not isinstance(found, list) or not all(isinstance(each, dict) for each in found):
        raise ValueError("it is no list of objects")
    return found


def structure(body: bytes) -> Mapping[str, Any]:
    """The object of a reply that is one. Raises ValueError."""
    return _object(parsed(body))


def text(values: Mapping[str, Any], name: str) -> str:
    """A field that must be there. Raises ValueError."""
    found = _optional(values, name, str)
    if not found:
        raise ValueError(f"{name} is missing")
    return found


def pool(values: Mapping[str, Any]) -> DesktopPool:
    """A desktop pool. The first version nests its settings. Raises ValueError."""
    settings = values.get("session_settings") or _object(values.get("settings") or {}).get("session_settings") or {}
    settings = _object(settings)
    source = _optional(values, "source", str) or ""
    kind = _KINDS.get(_optional(values, "type", str) or "", PoolKind.OTHER)
    if source == "INSTANT_CLONE":
        kind = PoolKind.INSTANT_CLONE
    elif source not in _OF_VCENTER:
        kind = PoolKind.OTHER
    return DesktopPool(
        text(values, "id"),
        text(values, "name"),
        kind,
        _POWER.get(_optional(settings, "power_policy", str) or ""),
        _LOGOFF.get(_optional(settings, "delete_or_refresh_machine_after_logoff", str) or ""),
        _optional(values, "enabled", bool),
        _spare_machines(values) if kind is PoolKind.AUTOMATED else 0,
    )


def _spare_machines(values: Mapping[str, Any]) -> int | None:
    """How many unused machines an automated pool keeps powered on, by its naming settings; None = neither is there.

    "The spare, available machines are always powered on, no matter how the pool policy is set" (VMware Horizon 2306,
    power policies of automated pools).
    """
    nested = _object(values.get("settings") or {})
    pattern, specified = (
        _object(values.get(name) or nested.get(name) or {})
        for name in ("pattern_naming_settings", "specified_naming_settings")
    )
    by_pattern = _optional(pattern, "number_of_spare_machines", int)
    return (
        by_pattern if by_pattern is not None else _optional(specified, "num_unassigned_machines_kept_powered_on", int)
    )


def vcenter(values: Mapping[str, Any]) -> BrokerVcenter:
    """A vCenter of the broker. Raises ValueError."""
    name = _optional(values, "display_name", str) or _optional(values, "server_name", str)
    identity = text(values, "id")
    return BrokerVcenter(identity, name or identity, _optional(values, "instance_uuid", str) or None)


def machine(values: Mapping[str, Any]) -> DesktopMachine:
    """A machine. Raises ValueError. (assumption: broker-maintenance)"""
    recorded = values.get("managed_machine_data")
    managed = _object(recorded or {})
    state = _optional(values, "state", str)
    in_maintenance = _optional(managed, "in_maintenance_mode", bool)
    if state == "MAINTENANCE":
        in_maintenance = True
    return DesktopMachine(
        text(values, "id"),
        text(values, "name"),
        _optional(values, "desktop_pool_id", str),
        _optional(values, "dns_name", str),
        _optional(managed, "path", str),
        state,
        in_maintenance,
        _optional(values, "session_id", str) or None,
        _optional(managed, "virtual_center_id", str) or None,
        recorded is not None or not (_optional(values, "type", str) or "").startswith("UNMANAGED"),
    )


def session(values: Mapping[str, Any]) -> DesktopSession:
    """A session; whose it is, is passed over. Raises ValueError."""
    idle_min = _optional(values, "idle_duration", int)
    if idle_min is not None and idle_min < 0:
        raise ValueError("idle_duration is negative")
    return DesktopSession(
        text(values, "id"),
        _optional(values, "machine_id", str),
        _STATES.get(_optional(values, "session_state", str) or ""),
        _moment(values, "start_time"),
        _moment(values, "disconnected_time"),
        None if idle_min is None else idle_min * 60.0,
        bool(_optional(values, "farm_id", str) or _optional(values, "rds_server_id", str)),
    )


def refusals(body: bytes, asked: frozenset[str]) -> dict[str, str]:
    """Why a change was not made, by the id of its machine. One of which nothing is said is among them.

    Raises ValueError for an answer about machines that nobody has named.
    """
    found: dict[str, str] = {}
    told: set[str] = set()
    for each in listed(body):
        identity, status = text(each, "id"), _optional(each, "status_code", int)
        if identity not in asked:
            raise ValueError("it names a machine that was not asked for")
        told.add(identity)
        if status is None or not 200 <= status < 300:
            reasons = each.get("error_messages") or []
            first = reasons[0] if isinstance(reasons, list) and reasons else ""
            found[identity] = _short(first) if isinstance(first, str) and first else f"status {status}"
    return found | dict.fromkeys(asked - told, "the broker says nothing of it")


def _short(reason: str) -> str:
    return reason if len(reason) <= 200 else f"{reason[:200]}..."


def _object(found: object) -> Mapping[str, Any]:
    if not isinstance(found, dict):
        raise ValueError("it is no object")
    return found


def _optional(values: Mapping[str, Any], name: str, kind: type[_Kind]) -> _Kind | None:
    """A field that may be missing or null, but is nothing else than its kind. Raises ValueError."""
    found = values.get(name)
    if found is None:
        return None
    if type(found) is not kind:
        raise ValueError(f"{name} is no {kind.__name__}")
    if isinstance(found, str) and len(found) > LONGEST_TEXT:
        raise ValueError(f"{name} has more than {LONGEST_TEXT} characters")
    return found


def _moment(values: Mapping[str, Any], name: str) -> datetime | None:
    """A time in milliseconds since 1970."""
    found = _optional(values, name, int)
    if found is None:
        return None
    if not 0 <= found < _MOST_MS:
        raise ValueError(f"{name} is no time")
    return _EPOCH + timedelta(milliseconds=found)
