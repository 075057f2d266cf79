"""Somebody: the caller of what other people do; the ledger then tells them from the client that is tested."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from gpuops.sim.call import Call
from gpuops.sim.sessions import Session

if TYPE_CHECKING:
    from gpuops.sim.world import World

USER: Final = "VSPHERE.LOCAL\\somebody"


def somebody(world: World, method: str) -> Call:
    """A call of another user, in no session that a client could see."""
    return Call(method=method, version=world.api_version, session=Session(world.sessions, "", "", USER, "en"))
