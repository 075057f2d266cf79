"""Real replies with a few bytes changed: a value, a fault, or an error of the transport, and nothing else."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import suppress
from datetime import datetime
from typing import Any
from xml.parsers.expat import ExpatError

import pytest

from gpuops.errors import ProtocolError
from gpuops.model.target import Target
from gpuops.sim.server import SimServer
from gpuops.vsphere import collect
from gpuops.vsphere.session import Session
from gpuops.vsphere.transport import door, stub
from gpuops.vsphere.transport.stub import deserialised
from gpuops.vsphere.wire import SessionEnded, WireFault, parsed

PIECES = [
    b"<",
    b">",
    b"&",
    b'"',
    b"</",
    b"<!DOCTYPE a>",
    b"<![CDATA[",
    b"\0",
    b"\xff",
    b"&#0;",
    b"xsi:type",
    b"Fault",
    b"9" * 50,
]


def mutated(reply: bytes, rng: random.Random) -> bytes:
    """The same with one to four small changes: bytes put in, taken out, turned over, or repeated."""
    changed = bytearray(reply)
    for _ in range(rng.randint(1, 4)):
        at = rng.randrange(len(changed))
        end = at + rng.choice((1, 1, 2, 8, 64))
        match rng.randrange(4):
            case 0:
                changed[at:at] = rng.choice(PIECES)
            case 1:
                del changed[at:end]
            case 2:
                changed[at : at + 1] = bytes((rng.randrange(256),))
            case _:
                changed[at:at] = changed[at:end]
        changed = changed or bytearray(b"<")
    return bytes(changed)


@pytest.fixture
def recorded(lab: SimServer, lab_target: Target, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[tuple[bytes, Any]]]:
    """Replies of the simulator to both parsers, with the type that pyVmomi expects of each (None = lxml's)."""
    found: list[tuple[bytes, Any]] = []
    typed = stub.deserialised

    def kept(received: bytes, result: Any, of: Any) -> Any:
        found.append((received, result))
        return typed(received, result, of)

    monkeypatch.setattr(stub, "deserialised", kept)
    with Session(lab_target) as session:
        session.read(session.instance.CurrentTime)
        found.append((_bulk_reply(session), None))
        collect.inventory(session)
        assert session.content.rootFolder is not None
    yield found


def _bulk_reply(session: Session) -> bytes:
    with session.wire() as wire:
        return wire.fetch("RetrieveServiceContent", ("ServiceInstance", "ServiceInstance"))


def _try_both(reply: bytes, result: Any) -> None:
    with suppress(door.Unreadable, ExpatError):
        deserialised(reply, result if result is not None else datetime, None)
    with suppress(ProtocolError, WireFault, SessionEnded):
        parsed(reply, "vc:443")


def test_a_few_hundred(recorded: list[tuple[bytes, Any]]) -> None:
    _fuzz(recorded, 600, seed=0)


@pytest.mark.long
@pytest.mark.timeout(300)
@pytest.mark.parametrize("seed", range(1, 11))
def test_a_hundred_thousand_in_ten_parts(recorded: list[tuple[bytes, Any]], seed: int) -> None:
    _fuzz(recorded, 10_000, seed=seed)


def _fuzz(recorded: list[tuple[bytes, Any]], turns: int, *, seed: int) -> None:
    rng = random.Random(seed)
    for turn in range(turns):
        reply, result = recorded[turn % len(recorded)]
        _try_both(mutated(reply, rng), result)
