"""What `gpuops broker show` prints, as text and JSON."""

from __future__ import annotations

from collections.abc import Iterator

from gpuops.model.desktops.broker import BrokerIdentity, DesktopPool
from gpuops.model.desktops.broker_state import BrokerState, PoolState
from gpuops.report.document import SCHEMA_VERSION, Document
from gpuops.report.layout import Shown, Text, TextTable
from gpuops.report.text import count, visible


def broker_text(state: BrokerState) -> Shown:
    """Who and what, then a line for each pool, and below them why a rotation cannot gate some."""
    return tuple(_lines(state))


def _lines(state: BrokerState) -> Iterator[Shown]:
    identity = state.identity
    yield Text(f"{visible(identity.address)}: {visible(identity.product)}", "bold")
    yield Text(f"user {visible(identity.user)}")
    if not state.pools:
        yield Text("this login sees no desktop pools")
        return
    yield _table(state)
    for each in state.pools:
        if each.pool.refusal is not None:
            yield Text(f"{visible(each.pool.name)}: no gate: {each.pool.refusal}", "yellow")
        if each.pool.refusal is None and each.pool.spare_machines:
            spares = count(each.pool.spare_machines, "spare machine")
            needed = f"a policy needs `floor: {each.pool.spare_machines}` or more"
            yield Text(f"{visible(each.pool.name)}: Horizon keeps {spares} powered on: {needed}", "yellow")
    if state.not_found:
        yield Text(f"{count(len(state.not_found), 'machine')} not found in this vCenter:", "yellow")
        yield from (Text(f"  {visible(line)}", "yellow") for line in state.reasons)
    if state.in_other_vcenters:
        yield Text(f"{count(state.in_other_vcenters, 'machine')} in other vCenters of the broker")
    if state.other_sessions:
        yield Text(f"{count(state.other_sessions, 'session')} on no machine of these pools", "yellow")


def _table(state: BrokerState) -> TextTable:
    table = TextTable(
        "pool", "kind", "power policy", "machines", "VMs", "maintenance", "sessions", "connected", "gate",
        right=(3, 4, 5, 6, 7),
    )  # fmt: skip
    for each in state.pools:
        pool = each.pool
        numbers = (each.machines, each.vms, each.in_maintenance, each.sessions, each.connected)
        table.add_row(
            visible(pool.name),
            pool.kind.value,
            pool.power_policy.value if pool.power_policy is not None else "unknown",
            *map(str, numbers),
            _gate_of(pool),
        )
    return table


def _gate_of(pool: DesktopPool) -> Text:
    if pool.refusal is not None:
        return Text("no", "yellow")
    return Text(f"floor {pool.spare_machines}", "yellow") if pool.spare_machines else Text("yes", "green")


def broker_show_document(state: BrokerState) -> Document:
    """The same for programs."""
    return {
        "schema_version": SCHEMA_VERSION,
        "kind": "broker-show",
        "broker": broker_document(state.identity),
        "pools": [_pool_document(each) for each in state.pools],
        "unmatched_machines": [name for name, _ in state.not_found],
        "machines_not_found": [{"name": name, "reason": reason} for name, reason in state.not_found],
        "machines_in_other_vcenters": state.in_other_vcenters,
        "other_sessions": state.other_sessions,
    }


def broker_document(identity: BrokerIdentity) -> Document:
    """Who and what."""
    return {
        "address": identity.address,
        "user": identity.user,
        "product": identity.product,
        "cluster": identity.cluster or None,
    }


def _pool_document(state: PoolState) -> Document:
    pool = state.pool
    return {
        "id": pool.id,
        "name": pool.name,
        "kind": pool.kind.value,
        "power_policy": pool.power_policy.value if pool.power_policy is not None else None,
        "after_logoff": pool.after_logoff.value if pool.after_logoff is not None else None,
        "enabled": pool.enabled,
        "spare_machines": pool.spare_machines,
        "machines": state.machines,
        "vms": state.vms,
        "in_maintenance": state.in_maintenance,
        "sessions": state.sessions,
        "connected": state.connected,
        "can_be_gated": pool.refusal is None,
        "refusal": pool.refusal,
    }
