"""Real replies with a few bytes changed, and what our readers make of them: a value, a fault, or our own error.

The changes are drawn from a seed: whatever went wrong once goes wrong again.
"""

from __future__ import annotations

import random
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final
from xml.parsers.expat import ExpatError

import pytest

from gpuops.errors import GpuopsError, ProtocolError
from gpuops.model.vcenter.inventory import Inventory
from gpuops.model.vcenter.target import Target
from gpuops.vsphere.reading import collect
from gpuops.vsphere.session import Session
from gpuops.vsphere.transport import network, stub
from gpuops.vsphere.transport.stub import deserialize_reply
from gpuops.vsphere.transport.wire import SessionEnded, Wire, WireFault, envelope, parse_reply

PIECES: Final = [
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


def mutate_reply(reply: bytes, rng: random.Random) -> bytes:
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


_TEXT: Final = re.compile(rb'(?<=>)[^<>]+(?=<)|(?<=type=")[^"]+(?=")')
_VALUES: Final = (
    b"",
    b" ",
    b"-1",
    b"0",
    b"NaN",
    b"9" * 50,
    b"1e999",
    b"true",
    b"vm-1",
    b"0000:3b:00.0",
    b"2026-13-45T99:99:99Z",
    b"ManagedObjectReference",
    b"ArrayOfAnyType",
    "\u202e\u0661".encode(),
    b"<a/>",
)


def change_values(reply: bytes, rng: random.Random) -> bytes:
    """The same, well-formed, with the text of one to four elements, or their type, another."""
    for _ in range(rng.randint(1, 4)):
        match = _TEXT.search(reply, rng.randrange(len(reply)))
        if match is not None:
            value = rng.choice(_VALUES)
            value = b"x" if b"<" in value and reply[match.start() - 1 : match.start()] == b'"' else value
            reply = reply[: match.start()] + value + reply[match.end() :]
    return reply


@dataclass
class Recorded:
    """What a vCenter said to one login that read everything."""

    typed: list[tuple[bytes, Any]] = field(default_factory=list)
    """Replies to pyVmomi, with the type that it expects of each."""
    read: list[tuple[str, bytes]] = field(default_factory=list)
    """Replies to our own reader, with the call they answer."""

    @property
    def replies(self) -> list[tuple[bytes, Any]]:
        """Both, each with a type for pyVmomi."""
        return [*self.typed, *((reply, datetime) for _, reply in self.read)]


def record_replies(target: Target) -> Recorded:
    """The replies of this vCenter to both parsers."""
    recording = Recorded()
    typed, fetch = stub.deserialize_reply, Wire.fetch

    def record_typed(received: bytes, result: Any, of: Any, **keywords: Any) -> Any:
        recording.typed.append((received, result))
        return typed(received, result, of, **keywords)

    def record_read(wire: Wire, method: str, *arguments: Any, **keywords: Any) -> bytes:
        reply = fetch(wire, method, *arguments, **keywords)
        recording.read.append((method, reply))
        return reply

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(stub, "deserialize_reply", record_typed)
        patched.setattr(Wire, "fetch", record_read)
        with Session(target) as session:
            session.read(session.instance.CurrentTime)
            collect.inventory(session)
            root = session.content.rootFolder
            session.read(getattr, root, "name")
            session.read(getattr, session.content.sessionManager, "currentSession")
            session.read(getattr, session.content.authorizationManager, "roleList")
    return recording


def fuzz_both(replies: Sequence[tuple[bytes, Any]], turns: int, *, seed: int) -> None:
    """Each parser has so many mutated replies; anything but a value or its own error is raised."""
    rng = random.Random(seed)
    for turn in range(turns):
        reply, result = replies[turn % len(replies)]
        changed = mutate_reply(reply, rng)
        with suppress(network.UnreadableReply, ExpatError):
            deserialize_reply(changed, result, None)
        with suppress(ProtocolError, WireFault, SessionEnded):
            parse_reply(changed, "vc:443")


def _as_it_is(reply: bytes, rng: random.Random) -> bytes:
    return reply


@contextmanager
def _answering(turn: dict[str, list[bytes]]) -> Iterator[None]:
    """Every call over the wire is answered from these, by its method; the last one again and again."""

    def fetch(wire: Wire, method: str, moref: tuple[str, str], arguments: str = "", **keywords: Any) -> bytes:
        envelope(method, moref, arguments)  # what cannot be asked is not answered
        replies = turn.get(method) or [b""]
        return replies.pop(0) if len(replies) > 1 else replies[0]

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(Wire, "fetch", fetch)
        yield


def reread(target: Target, read: Sequence[tuple[str, bytes]]) -> Inventory:
    """The inventory that our reader makes of these replies, by the call they answer. Raises GpuopsError."""
    answers: dict[str, list[bytes]] = {}
    for method, reply in read:
        answers.setdefault(method, []).append(reply)
    with Session(target) as session, _answering(answers):
        return collect.inventory(session)


def fuzz_reader(target: Target, recording: Recorded, turns: int, *, seed: int) -> int:
    """So many inventories are read from replies of which one is mutated; how many were refused.

    Anything but an inventory or an error of ours is raised.
    """
    rng, refused = random.Random(seed), 0
    answers: dict[str, list[bytes]] = {}
    with Session(target) as session, _answering(answers):
        of_reads = [number for number, (method, _) in enumerate(recording.read) if "Retrieve" in method]
        for _ in range(turns):
            struck = rng.choice(of_reads)
            answers.clear()
            for number, (method, reply) in enumerate(recording.read):
                change = rng.choice((mutate_reply, change_values)) if number == struck else _as_it_is
                answers.setdefault(method, []).append(change(reply, rng))
            answers["RetrieveServiceContent"] = answers["RetrieveServiceContent"][-1:]
            try:
                collect.inventory(session)
            except GpuopsError:
                refused += 1
    return refused
