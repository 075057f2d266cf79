"""What `gpuops broker show` prints, as text and JSON."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from gpuops.model.desktops.broker import BrokerIdentity
from gpuops.model.desktops.broker_state import BrokerState, PoolState
from gpuops.report.document import SCHEMA_VERSION, Document
from gpuops.report.layout import Shown, Text, TextTable
from gpuops.report.text import count, visible

_FEW: Final = 5


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
    if state.unmatched:
        few = ", ".join(visible(name) for name in state.unmatched[:_FEW])
        more = f" and {len(state.unmatched) - _FEW} more" if len(state.unmatched) > _FEW else ""
        yield Text(f"{count(len(state.unmatched), 'machine')} not found in this vCenter: {few}{more}", "yellow")
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
            Text("yes", "green") if pool.refusal is None else Text("no", "yellow"),
        )
    return table


def broker_show_document(state: BrokerState) -> Document:
    """The same for programs."""
    return {
        "schema_version": SCHEMA_VERSION,
        "kind": "broker-show",
        "broker": broker_document(state.identity),
        "pools": [_pool_document(each) for each in state.pools],
        "unmatched_machines": list(state.unmatched),
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
        "machines": state.machines,
        "vms": state.vms,
        "in_maintenance": state.in_maintenance,
        "sessions": state.sessions,
        "connected": state.connected,
        "can_be_gated": pool.refusal is None,
        "refusal": pool.refusal,
    }
