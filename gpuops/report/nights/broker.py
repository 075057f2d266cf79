"""Text and document of `gpuops broker show`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Self

from gpuops.model.desktops.broker import (
    AfterLogoff,
    BrokerIdentity,
    BrokerState,
    DesktopPool,
    DesktopPowerPolicy,
    PoolKind,
    PoolState,
)
from gpuops.report.document import DocumentRecord, PrintedDocument, printed
from gpuops.report.layout import Column, Shown, Text, TextTable, table_of
from gpuops.report.text import count


def broker_text(state: BrokerState) -> Iterator[Shown]:
    """Yield the broker and its user, a table of the pools, and why a rotation cannot gate some of them."""
    identity = state.identity
    yield Text(f"{identity.address}: {identity.product}", "bold")
    yield Text(f"user {identity.user}")
    if not state.pools:
        yield Text("this login sees no desktop pools")
        return
    yield _table(state)
    for pool in (pool_state.pool for pool_state in state.pools):
        if pool.refusal is not None:
            yield Text(f"{pool.name}: no gate: {pool.refusal}", "yellow")
        elif pool.spare_machines:
            spares = count(pool.spare_machines, "spare machine")
            needed = f"a policy needs `floor: {pool.spare_machines}` or more"
            yield Text(f"{pool.name}: Horizon keeps {spares} powered on: {needed}", "yellow")
    if state.not_found:
        yield Text(f"{count(len(state.not_found), 'machine')} not found in this vCenter:", "yellow")
        yield from (Text(f"  {line}", "yellow") for line in state.reasons)
    if state.in_other_vcenters:
        yield Text(f"{count(state.in_other_vcenters, 'machine')} in other vCenters of the broker")
    if state.other_sessions:
        yield Text(f"{count(state.other_sessions, 'session')} on no machine of these pools", "yellow")


def _table(state: BrokerState) -> TextTable:
    return table_of(
        state.pools,
        Column("pool", lambda state: state.pool.name),
        Column("kind", lambda state: state.pool.kind.value),
        Column("power policy", lambda state: state.pool.power_policy.value if state.pool.power_policy else "unknown"),
        Column("machines", lambda state: str(state.machines), right=True),
        Column("VMs", lambda state: str(state.vms), right=True),
        Column("maintenance", lambda state: str(state.in_maintenance), right=True),
        Column("sessions", lambda state: str(state.sessions), right=True),
        Column("connected", lambda state: str(state.connected), right=True),
        Column("gate", lambda state: _gate_of(state.pool)),
    )


def _gate_of(pool: DesktopPool) -> Text:
    if pool.refusal is not None:
        return Text("no", "yellow")
    return Text(f"floor {pool.spare_machines}", "yellow") if pool.spare_machines else Text("yes", "green")


class BrokerRecord(DocumentRecord, frozen=True):
    """A connection broker and its logged-in user."""

    address: str
    user: str
    product: Annotated[str, "name and version"]
    cluster: str | None

    @classmethod
    def made_of(cls, identity: BrokerIdentity) -> Self:
        return cls.from_attributes(identity, cluster=identity.cluster or None)


class MachineNotFoundRecord(DocumentRecord, frozen=True):
    """A machine of the broker that cannot be matched to one VM of this vCenter."""

    name: str
    reason: str


class BrokerPoolRecord(DocumentRecord, frozen=True):
    """A desktop pool."""

    id: str
    name: str
    kind: PoolKind
    power_policy: Annotated[DesktopPowerPolicy | None, "null = not known"]
    after_logoff: AfterLogoff | None
    enabled: bool | None
    spare_machines: Annotated[int | None, "unused machines that the broker keeps powered on; null = not known"]
    machines: int
    vms: Annotated[int, "machines whose VM is in this vCenter"]
    in_maintenance: Annotated[int, "machines in maintenance mode, which get no user"]
    sessions: int
    connected: Annotated[int, "sessions that are not known to be disconnected"]
    can_be_gated: Annotated[bool, "whether a rotation can keep users away from its machines"]
    refusal: Annotated[str | None, "why it cannot"]

    @classmethod
    def made_of(cls, state: PoolState) -> Self:
        return cls.from_attributes(state, state.pool, can_be_gated=state.pool.refusal is None)


@printed("broker-show", by="gpuops broker show")
class BrokerShowDocument(PrintedDocument, frozen=True):
    """Desktop pools of the connection broker, and what a rotation can gate."""

    broker: BrokerRecord
    pools: Annotated[list[BrokerPoolRecord], "by name"]
    unmatched_machines: Annotated[list[str], "names of machines that are not certainly a VM of this vCenter"]
    machines_not_found: Annotated[list[MachineNotFoundRecord], "the same machines, each with the reason"]
    machines_in_other_vcenters: Annotated[int, "machines that are certainly in another vCenter of the broker"]
    other_sessions: Annotated[int, "on no machine of these pools"]

    @classmethod
    def made_of(cls, state: BrokerState) -> Self:
        return cls.from_attributes(
            state,
            broker=state.identity,
            unmatched_machines=[name for name, _ in state.not_found],
            machines_not_found=[MachineNotFoundRecord(name, reason) for name, reason in state.not_found],
            machines_in_other_vcenters=state.in_other_vcenters,
        )
