"""What a typed reply leaves in memory: nothing, also before the garbage collector runs. Services read for months."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import datetime
from pyexpat import XMLParserType
from xml.parsers.expat import ExpatError

import pytest
from pyVmomi import vim, vmodl

from gpuops.vsphere.session import Session
from gpuops.vsphere.transport.network import UnreadableReply
from gpuops.vsphere.transport.stub import deserialize_reply
from tests.wire.hostile.hostile_replies import nonsense, small

REPLIES = 5


@contextmanager
def garbage_kept() -> Iterator[None]:
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def count_live(*types: type) -> int:
    return sum(isinstance(thing, types) for thing in gc.get_objects())


def test_no_parser_outlives_its_reply(session: Session) -> None:
    session.read(session.instance.CurrentTime)  # imports pyVmomi, and makes its types
    with garbage_kept():
        before = count_live(XMLParserType)
        for _ in range(REPLIES):
            session.read(session.instance.CurrentTime)
            session.read(getattr, session.content.rootFolder, "name")
        assert count_live(XMLParserType) == before


@pytest.mark.long
def test_no_parser_and_no_fault_outlives_a_refusal(session: Session) -> None:
    unknown_vm = vim.VirtualMachine("vm-unknown", session.stub)
    with suppress(vmodl.fault.ManagedObjectNotFound):
        unknown_vm.PowerOffVM_Task()
    with garbage_kept():
        before = count_live(XMLParserType, vmodl.fault.ManagedObjectNotFound)
        for _ in range(REPLIES):
            with suppress(vmodl.fault.ManagedObjectNotFound):
                unknown_vm.PowerOffVM_Task()
        assert count_live(XMLParserType, vmodl.fault.ManagedObjectNotFound) == before


@pytest.mark.quick_cases(1)
@pytest.mark.parametrize("name", [*small(), *nonsense()])
def test_no_parser_outlives_a_reply_that_cannot_be_read(name: str) -> None:
    body = {**small(), **nonsense()}[name].body
    with garbage_kept():
        before = count_live(XMLParserType)
        for _ in range(REPLIES):
            with suppress(UnreadableReply, ExpatError):
                deserialize_reply(body, datetime, None)
        assert count_live(XMLParserType) == before
