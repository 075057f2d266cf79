"""A vCenter of 100,000 VMs as far as its replies go: the pages of a bulk read are made of one VM of a simulated one.

In a process of its own (`python -m tests.wire.reading.large_fleet VMS`), which prints what reading it cost.
"""

from __future__ import annotations

import json
import re
import resource
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

from gpuops.model.vcenter.target import Secret, Target
from gpuops.sim.scenario.build import build
from gpuops.sim.server import SimServer
from gpuops.vsphere.reading import collect
from gpuops.vsphere.reading.bulk.pages import PAGE_OBJECTS
from gpuops.vsphere.session import Session
from gpuops.vsphere.transport.exchange import HttpReply
from gpuops.vsphere.transport.wire import Wire

FIRST = 1_000_000
"""The number in the id of the first VM that is made."""
_OBJECT = re.compile(rb'<objects><obj type="VirtualMachine">(vm-\d+)</obj>.*?</objects>', re.DOTALL)
_ASKED = re.compile(rb'<obj type="VirtualMachine">(vm-\d{7,})</obj>')
_TOKEN = re.compile(rb"<token>fleet-(\d+)</token>")

Ask = Callable[[bytes], bytes]
"""Sends a request to the simulated vCenter."""


class Pages:
    """What becomes of the exchanges of an honest client: its reads of everything, and of the VMs that are made, are
    answered here."""

    def __init__(self, count: int) -> None:
        self._count = count
        self._like = b""
        """The VM that the others are like, by its id."""
        self._thin = self._detail = b""
        self._around_thin = self._around = (b"", b"")
        self.replies = 0
        self.bytes = 0

    def answer(self, honest: Ask, body: bytes) -> bytes:
        reply = self._answer(honest, body)
        self.replies += 1
        self.bytes += len(reply)
        return reply

    def _answer(self, ask: Ask, body: bytes) -> bytes:
        requested_refs = _ASKED.findall(body)
        if requested_refs:
            if not self._detail:
                honest = ask(body.replace(requested_refs[0], self._like, 1))
                self._detail = next(match[0] for match in _OBJECT.finditer(honest) if match[1] == self._like)
                self._around = _around(honest)
            return self._page(self._around, self._detail, [int(ref[3:]) for ref in requested_refs], None)
        token = _TOKEN.search(body)
        if token is not None:
            return self._numbered_page(int(token[1]))
        honest = ask(body)
        if b'type="ContainerView"' in body and b"<RetrievePropertiesEx" in body and not self._thin:
            return self._begin_pages(honest)
        return honest

    def _begin_pages(self, honest: bytes) -> bytes:
        """The honest page, and that more follow."""
        match = next(match for match in _OBJECT.finditer(honest) if b"nvidia" not in match[0] and b"Host" in match[0])
        self._thin, self._like = match[0], match[1]
        self._around_thin = _around(honest.replace(b"RetrievePropertiesEx", b"ContinueRetrievePropertiesEx"))
        return honest.replace(b"<returnval>", b"<returnval><token>fleet-0</token>", 1)

    def _numbered_page(self, page: int) -> bytes:
        first = page * PAGE_OBJECTS
        last = min(first + PAGE_OBJECTS, self._count)
        token = f"<token>fleet-{page + 1}</token>".encode() if last < self._count else None
        return self._page(self._around_thin, self._thin, range(FIRST + first, FIRST + last), token)

    def _page(self, around: tuple[bytes, bytes], like: bytes, numbers: object, token: bytes | None) -> bytes:
        assert isinstance(numbers, (list, range))
        objects = b"".join(like.replace(self._like, b"vm-%d" % number) for number in numbers)
        head, tail = around
        return head + (token or b"") + objects + tail


def _around(honest: bytes) -> tuple[bytes, bytes]:
    return honest[: honest.index(b"<objects>")], honest[honest.rindex(b"</objects>") + len(b"</objects>") :]


@contextmanager
def fleet(count: int) -> Iterator[tuple[Session, Pages]]:
    pages, honest = Pages(count), Wire._exchange

    def answer_request(wire: Wire, path: str, body: bytes, *remaining_arguments: Any) -> HttpReply:
        return HttpReply(
            200,
            "OK",
            pages.answer(lambda request_body: honest(wire, path, request_body, *remaining_arguments).body, body),
            (),
        )

    with (
        SimServer(build("lab"), tls=False) as server,
        patch.object(Wire, "_exchange", answer_request),
        Session(Target("127.0.0.1", server.username, Secret(server.password), port=server.port, tls=False)) as session,
    ):
        yield session, pages


def main(count: int) -> None:
    with fleet(0) as (session, _):
        collect.inventory(session)
    idle = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with fleet(count) as (session, pages):
        began = time.process_time()
        inventory = collect.inventory(session)
        spent_s = time.process_time() - began
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - idle) / 1024
    fleet_vms = [vm for vm in inventory.vms.values() if int(vm.ref[3:]) >= FIRST]
    print(json.dumps({
        "vms": len(fleet_vms), "with_devices": sum(vm.devices is not None for vm in fleet_vms), "cpu_s": spent_s,
        "mib": grown, "replies": pages.replies, "reply_mib": pages.bytes / 2**20,
    }))  # fmt: skip


if __name__ == "__main__":
    main(int(sys.argv[1]))
