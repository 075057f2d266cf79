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
_TOO_LATE_MS: Final = 253_402_300_800_000
"""The first millisecond of the year 10000, which `datetime` cannot hold."""
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
_VCENTER_SOURCES: Final = frozenset({"VIRTUAL_CENTER", "VIEW_COMPOSER", "LINKED_CLONE", ""})
"""The sources of pools whose machines are VMs of a vCenter; an empty text if the record has no source."""

UNREADABLE: Final = (AttributeError, *NOT_PARSED)
"""What decoding raises for a reply that no Connection Server sends."""

_Kind = TypeVar("_Kind")


def parse_body(body: bytes) -> Any:
    """Return the JSON of a reply. Raises ValueError."""
    return parse_json(body.decode("utf-8"))


def parse_list(body: bytes) -> list[Mapping[str, Any]]:
    """Return the objects of a reply that is a list. Raises ValueError."""
    records = parse_body(body)
    if not isinstance(records, list) or not all(isinstance(record, dict) for record in records):
        raise ValueError("it is not a list of objects")
    return records


def structure(body: bytes) -> Mapping[str, Any]:
    """Return the JSON object of a reply. Raises ValueError if the reply is anything else."""
    return _object(parse_body(body))


def text(record: Mapping[str, Any], name: str) -> str:
    """Return the text of a required field. Raises ValueError."""
    field_text = _optional(record, name, str)
    if not field_text:
        raise ValueError(f"{name} is missing")
    return field_text


def pool(record: Mapping[str, Any]) -> DesktopPool:
    """Return a desktop pool. Raises ValueError for a record without its required fields, or of wrong types."""
    nested = _object(record.get("settings") or {})  # where the first version of the API has the settings
    settings = _object(record.get("session_settings") or nested.get("session_settings") or {})
    source = _optional(record, "source", str) or ""
    kind = _KINDS.get(_optional(record, "type", str) or "", PoolKind.OTHER)
    if source == "INSTANT_CLONE":  # the type of such a pool is AUTOMATED, too
        kind = PoolKind.INSTANT_CLONE
    elif source not in _VCENTER_SOURCES:
        kind = PoolKind.OTHER
    return DesktopPool(
        text(record, "id"),
        text(record, "name"),
        kind,
        _POWER.get(_optional(settings, "power_policy", str) or ""),
        _LOGOFF.get(_optional(settings, "delete_or_refresh_machine_after_logoff", str) or ""),
        _optional(record, "enabled", bool),
        _spare_machines(record) if kind is PoolKind.AUTOMATED else 0,
    )


def _spare_machines(record: Mapping[str, Any]) -> int | None:
    """Return how many unused machines an automated pool keeps powered on, by its naming settings; None = unknown.

    "The spare, available machines are always powered on, no matter how the pool policy is set" (VMware Horizon 2306,
    power policies of automated pools).
    """
    nested = _object(record.get("settings") or {})
    pattern, specified = (
        _object(record.get(name) or nested.get(name) or {})
        for name in ("pattern_naming_settings", "specified_naming_settings")
    )
    by_pattern = _optional(pattern, "number_of_spare_machines", int)
    if by_pattern is not None:
        return by_pattern
    return _optional(specified, "num_unassigned_machines_kept_powered_on", int)


def vcenter(record: Mapping[str, Any]) -> BrokerVcenter:
    """Return a vCenter of the broker. Raises ValueError."""
    name = _optional(record, "display_name", str) or _optional(record, "server_name", str)
    identity = text(record, "id")
    return BrokerVcenter(identity, name or identity, _optional(record, "instance_uuid", str) or None)


def machine(record: Mapping[str, Any]) -> DesktopMachine:
    """Return a machine. Raises ValueError. (assumption: broker-maintenance)"""
    managed_data = record.get("managed_machine_data")
    managed = _object(managed_data or {})
    state = _optional(record, "state", str)
    in_maintenance = _optional(managed, "in_maintenance_mode", bool)
    if state == "MAINTENANCE":  # certain, even if the record lacks the flag
        in_maintenance = True
    return DesktopMachine(
        id=text(record, "id"),
        name=text(record, "name"),
        pool=_optional(record, "desktop_pool_id", str),
        dns_name=_optional(record, "dns_name", str),
        path=_optional(managed, "path", str),
        state=state,
        in_maintenance=in_maintenance,
        session=_optional(record, "session_id", str) or None,
        vcenter=_optional(managed, "virtual_center_id", str) or None,
        # without such data, only a type that says so makes it unmanaged
        managed=managed_data is not None or not (_optional(record, "type", str) or "").startswith("UNMANAGED"),
    )


def session(record: Mapping[str, Any]) -> DesktopSession:
    """Return a session without its user. Raises ValueError."""
    idle_min = _optional(record, "idle_duration", int)
    if idle_min is not None and idle_min < 0:
        raise ValueError("idle_duration is negative")
    return DesktopSession(
        id=text(record, "id"),
        machine=_optional(record, "machine_id", str),
        state=_STATES.get(_optional(record, "session_state", str) or ""),
        started_at=_moment(record, "start_time"),
        disconnected_at=_moment(record, "disconnected_time"),
        idle_s=None if idle_min is None else idle_min * 60.0,
        on_rds_host=bool(_optional(record, "farm_id", str) or _optional(record, "rds_server_id", str)),
    )


def refusals(body: bytes, machine_ids: frozenset[str]) -> dict[str, str]:
    """Return the reason by machine id for each change that was refused, or that the reply does not mention.

    Raises ValueError for a reply about other machines than those of the request.
    """
    reasons_by_machine: dict[str, str] = {}
    reported_ids: set[str] = set()
    for record in parse_list(body):
        identity, status = text(record, "id"), _optional(record, "status_code", int)
        if identity not in machine_ids:
            raise ValueError("it names a machine that was not in the request")
        reported_ids.add(identity)
        if status is None or not 200 <= status < 300:
            reasons = record.get("error_messages") or []
            first_reason = reasons[0] if isinstance(reasons, list) and reasons else ""
            reason = first_reason if isinstance(first_reason, str) and first_reason else f"status {status}"
            reasons_by_machine[identity] = reason if len(reason) <= 200 else f"{reason[:200]}..."
    return reasons_by_machine | dict.fromkeys(machine_ids - reported_ids, "the broker did not report a result for it")


def _object(json_value: object) -> Mapping[str, Any]:
    """Return the value if it is a JSON object. Raises ValueError otherwise."""
    if not isinstance(json_value, dict):
        raise ValueError("it is not an object")
    return json_value


def _optional(record: Mapping[str, Any], name: str, kind: type[_Kind]) -> _Kind | None:
    """Return a field of that type; None if it is missing or null. Raises ValueError for any other type."""
    field = record.get(name)
    if field is None:
        return None
    if type(field) is not kind:
        raise ValueError(f"{name} is not of type {kind.__name__}")
    if isinstance(field, str) and len(field) > LONGEST_TEXT:
        raise ValueError(f"{name} has more than {LONGEST_TEXT} characters")
    return field


def _moment(record: Mapping[str, Any], name: str) -> datetime | None:
    """Return a time given in milliseconds since 1970."""
    milliseconds = _optional(record, name, int)
    if milliseconds is None:
        return None
    if not 0 <= milliseconds < _TOO_LATE_MS:
        raise ValueError(f"{name} is not a time")
    return _EPOCH + timedelta(milliseconds=milliseconds)
