"""Bulk reads over VI/JSON: equal to those over SOAP, ended by whatever no vCenter says, and then over SOAP."""

from __future__ import annotations

import http.client
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest

from gpuops.errors import GpuopsError, ProtocolError
from gpuops.model.vcenter.inventory import Inventory
from gpuops.model.vcenter.target import Target
from gpuops.model.vcenter.vm import PowerState
from gpuops.sim.server import SimServer
from gpuops.vsphere.reading.bulk import json_pages
from gpuops.vsphere.reading.collect import inventory, observe, with_drs
from gpuops.vsphere.reading.comparison import compare, differences
from gpuops.vsphere.session import Session
from gpuops.vsphere.transport.exchange import HttpReply
from gpuops.vsphere.transport.messages import MOST_MARKS
from gpuops.vsphere.transport.network import UnreadableReply
from gpuops.vsphere.transport.wire import JsonLogin, Wire
from tests.sample import mostly_long
from tests.wire.conftest import target_of

Read = Callable[[Session], Inventory]


def reader_differences(target: Target, read: Read = inventory) -> list[tuple[str, Any, Any]]:
    """The values in which the two readers differ; nothing moves between them."""
    with Session(target) as session:
        over_soap = read(session)
        session.read_over_vi_json(alone=True)
        over_json = read(session)
        assert session.vi_json is not None
        assert session.vi_json.key
        return list(differences(replace(over_soap, taken_at=over_json.taken_at), over_json))


@pytest.mark.long
@pytest.mark.parametrize(
    "scenario",
    mostly_long(["lab", "scattered", "fleet:hosts=20", "vdi", "fleet:hosts=300,vms=3000"], ["lab", "scattered"]),
)
def test_every_field_of_a_snapshot_is_the_same(serve: Callable[[str], SimServer], scenario: str) -> None:
    assert reader_differences(target_of(serve(scenario))) == []


@pytest.mark.long
def test_a_look_at_some_vms_is_the_same(lab_target: Target) -> None:
    def look(session: Session) -> Inventory:
        snapshot = inventory(session)
        some = [vm.ref for vm in snapshot.vms.values()][:7]
        return with_drs(session, observe(session, snapshot, some), some)

    assert reader_differences(lab_target, look) == []


@pytest.mark.long
@pytest.mark.parametrize("seed", mostly_long(range(20), [0, 1]))
def test_worlds_that_changed_are_the_same(lab: SimServer, lab_target: Target, seed: int) -> None:
    rng = random.Random(seed)
    with lab.world.changed:
        for vm in lab.world.by_type("VirtualMachine"):
            if rng.random() < 0.5:
                vm.state.name = "".join(rng.choices('az"\\/<&>\t é\u2028\U0001f5a5', k=rng.randrange(1, 30)))
    assert reader_differences(lab_target) == []


@pytest.mark.long
def test_both_sessions_are_logged_out(lab: SimServer, lab_target: Target) -> None:
    with Session(lab_target) as session:
        session.read_over_vi_json(alone=True)
        inventory(session)
        assert len(list(lab.world.sessions)) == 2
    assert list(lab.world.sessions) == []


@pytest.mark.long
def test_a_session_that_ended_is_begun_again(lab: SimServer, lab_target: Target) -> None:
    with Session(lab_target) as session:
        session.read_over_vi_json(alone=True)
        before = inventory(session)
        assert session.vi_json is not None
        first = session.vi_json.key
        with lab.world.changed:
            for simulated_session in list(lab.world.sessions):
                lab.world.sessions.close(simulated_session)
        assert replace(inventory(session), taken_at=before.taken_at) == before
        assert session.vi_json.key not in ("", first)


OK = HttpReply(200, "OK", b"{}", ())
NESTED = b"[" * 200_000 + b"]" * 200_000
AN_OBJECT = b'{"obj":{"_typeName":"ManagedObjectReference","type":"VirtualMachine","value":"vm-1"},"propSet":[%s]}'


def page(*properties: bytes) -> bytes:
    return b'{"_typeName":"RetrieveResult","objects":[%s]}' % (AN_OBJECT % b",".join(properties))


SURPRISES = {
    "another status": replace(OK, status=503, reason="Service Unavailable"),
    "a redirect": replace(OK, status=302, reason="Found"),
    "no such path": replace(OK, status=404, reason="Not Found", body=b"<html>"),
    "a fault": replace(OK, status=500, body=b'{"_typeName":"InvalidProperty","name":"x","faultstring":"no"}'),
    "an invalid fault": replace(OK, status=500, body=b'{"_typeName":7}'),
    "void": replace(OK, status=204, body=b""),
    "nothing": replace(OK, body=b""),
    "no page": OK,
    "a list": replace(OK, body=b"[1,2]"),
    "a number": replace(OK, body=b"7"),
    "HTML": replace(OK, body=b"<html></html>"),
    "half a page": replace(OK, body=page()[:-5]),
    "deep nesting": replace(OK, body=NESTED),
    "deep nesting in a value": replace(OK, body=page(b'{"name":"name","val":' + NESTED + b"}")),
    "a number of a million digits": replace(OK, body=b'{"token":' + b"9" * 10**6 + b"}"),
    "more values than a page has": replace(OK, body=b"[" + b"[]," * 2_000_000 + b"1]"),
    "an invalid token": replace(OK, body=b'{"token":{},"objects":[]}'),
    "invalid objects": replace(OK, body=b'{"objects":{"a":1}}'),
    "an invalid object": replace(OK, body=b'{"objects":[7]}'),
    "an object without an id": replace(OK, body=b'{"objects":[{"obj":{"type":"VirtualMachine"}}]}'),
    "an id with a path in it": replace(OK, body=b'{"objects":[{"obj":{"type":"Task","value":"../x"}}]}'),
    "an id that is a number": replace(OK, body=b'{"objects":[{"obj":{"type":"Task","value":7}}]}'),
    "pages without an end": replace(OK, body=b'{"token":"1","objects":[]}'),
    "not the view": replace(OK, body=page()),
    "a list that is an object": replace(OK, body=page(b'{"name":"datastore","val":{"_typeName":"X","a":1}}')),
    "a control character": replace(OK, body=page(b'{"name":"name","val":{"_value":"a\\u0007"}}')),
    "half a character": replace(OK, body=page(b'{"name":"name","val":{"_value":"\\ud800"}}')),
    "bytes that are no text": replace(OK, body=page(b'{"name":"name","val":{"_value":"\xff"}}')),
    "an invalid value": replace(OK, body=page(b'{"name":"name","val":7}')),
}


@contextmanager
def answering(method: str, reply: HttpReply, *, times: int = 1_000) -> Iterator[None]:
    """The vCenter answers the calls of a method over VI/JSON with this."""
    answers_left, honest = [times], Wire._exchange

    def answer_call(wire: Wire, path: str, *remaining_arguments: Any) -> HttpReply:
        if path.endswith(f"/{method}") and answers_left[0]:
            answers_left[0] -= 1
            _, _, answers, _ = remaining_arguments
            if reply.status not in answers:
                raise http.client.HTTPException(f"{reply.status} {reply.reason}")
            return reply
        return honest(wire, path, *remaining_arguments)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(Wire, "_exchange", answer_call)
        yield


@pytest.mark.quick_cases(7)
@pytest.mark.parametrize("reply", SURPRISES.values(), ids=SURPRISES)
def test_a_surprise_is_warned_of_once_and_read_over_soap(lab_target: Target, reply: HttpReply) -> None:
    warnings: list[str] = []
    with Session(lab_target) as session:
        session.warn = warnings.append
        expected = inventory(session)
        session.read_over_vi_json()
        with answering("RetrievePropertiesEx", reply):
            inventories = [inventory(session) for _ in range(2)]
    assert [replace(snapshot, taken_at=expected.taken_at) for snapshot in inventories] == [expected, expected]
    assert len(warnings) == 1, warnings
    assert warnings[0].startswith("gpuops reads over SOAP from now on, because VI/JSON failed: ")


@pytest.mark.quick_cases(14)
@pytest.mark.parametrize("method", ["Login", "CreateContainerView", "RetrievePropertiesEx"])
@pytest.mark.parametrize("reply", SURPRISES.values(), ids=SURPRISES)
def test_without_soap_it_is_one_error(lab_target: Target, method: str, reply: HttpReply) -> None:
    with Session(lab_target) as session:
        session.read_over_vi_json(alone=True)
        with answering(method, reply), pytest.raises(GpuopsError) as caught:
            inventory(session)
    assert len(caught.value.message) < 600
    assert "\n" not in caught.value.message


@pytest.mark.long
@pytest.mark.parametrize("body", [b"", b"{}", b'{"objects":[]}'])
def test_a_page_that_does_not_come_is_a_surprise(
    lab_target: Target, monkeypatch: pytest.MonkeyPatch, body: bytes
) -> None:
    monkeypatch.setattr(json_pages, "PAGE_OBJECTS", 20)
    warnings: list[str] = []
    with Session(lab_target) as session:
        session.warn = warnings.append
        expected = inventory(session)
        session.read_over_vi_json()
        with answering("ContinueRetrievePropertiesEx", replace(OK, body=body)):
            snapshot = inventory(session)
    assert replace(snapshot, taken_at=expected.taken_at) == expected
    assert len(warnings) == 1


@pytest.mark.long
@pytest.mark.parametrize(
    ("json_value", "name", "power"),
    [
        (b'{"_typeName":"string","_value":"a"}', "a", PowerState.ON),
        (b'{"_typeName":"int","_value":7}', "vm-1", PowerState.ON),
        (b'{"_typeName":"boolean","_value":true}', "vm-1", PowerState.ON),
        (b'{"_typeName":"string","_value":null}', "vm-1", PowerState.ON),
        (b'{"_typeName":"X"}', "vm-1", PowerState.ON),
        (b'{"_typeName":"string","_value":"a","_value":"b"}', "b", PowerState.ON),
    ],
)
def test_a_leaf_of_another_type_is_unknown(json_value: bytes, name: str, power: PowerState) -> None:
    on = b'{"name":"runtime.powerState","val":{"_typeName":"string","_value":"poweredOn"}}'
    vm = thin(page(b'{"name":"name","val":%s}' % json_value, on))
    assert (vm.name, vm.power) == (name, power)


@pytest.mark.long
@pytest.mark.parametrize(
    "json_value", [b"1.5", b"true", b'"x"', b"9223372036854775808", b"{}", b"[1]", b"null", b"-0.0"]
)
def test_a_number_that_is_none_is_unknown(json_value: bytes) -> None:
    path = b'{"name":"summary.config.numCpu","val":{"_typeName":"int","_value":%s}}'
    assert thin(page(path % json_value)).vcpus is None


def thin(reply: bytes) -> Any:
    from gpuops.vsphere.reading.decoding.decode_vm import thin_vm

    [(_, objects)] = json_pages.pieces(reply)
    return thin_vm(next(iter(objects))).vm


@pytest.mark.long
def test_a_backslash_before_a_letter_is_no_control_character() -> None:
    named = page(b'{"name":"name","val":{"_value":"C:\\\\folder\\\\u0000\\\\b"}}')
    assert thin(named).name == "C:\\folder\\u0000\\b"


@pytest.mark.long
def test_a_page_of_too_many_values_is_refused_before_it_is_decoded() -> None:
    within = b"[" + b"0," * (MOST_MARKS - 1) + b"0]"
    assert json_pages.check_json_reply(within) is within
    with pytest.raises(UnreadableReply, match="more than 1,500,000 values"):
        json_pages.check_json_reply(b"[" + b"0," * MOST_MARKS + b"0]")


@pytest.mark.long
def test_a_value_that_moves_is_no_difference(
    lab: SimServer, lab_target: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    from gpuops.vsphere.reading import comparison

    reads = [0]

    def moving(session: Session) -> Inventory:
        snapshot = inventory(session)
        reads[0] += 1
        vm = next(iter(snapshot.vms.values()))
        return replace(snapshot, vms={**snapshot.vms, vm.ref: replace(vm, cpu_usage_mhz=reads[0])})

    monkeypatch.setattr(comparison, "inventory", moving)
    with Session(lab_target) as session:
        _, differences, failure = compare(session)
    assert (differences, failure) == ((), "")


@pytest.mark.long
def test_a_value_that_differs_is_named(lab_target: Target, monkeypatch: pytest.MonkeyPatch) -> None:
    from gpuops.vsphere.reading import comparison

    def read_other(session: Session) -> Inventory:
        snapshot = inventory(session)
        if session.vi_json is None:
            return snapshot
        vm = next(iter(snapshot.vms.values()))
        return replace(snapshot, vms={**snapshot.vms, vm.ref: replace(vm, vcpus=99)})

    monkeypatch.setattr(comparison, "inventory", read_other)
    with Session(lab_target) as session:
        snapshot, differences, _ = compare(session)
        assert session.vi_json is None
    vm = next(iter(snapshot.vms.values()))
    assert [(difference.path, difference.soap, difference.json) for difference in differences] == [
        (f"vms.{vm.ref}.vcpus", str(vm.vcpus), "99")
    ]


@pytest.mark.long
def test_the_key_is_of_no_other_login(lab: SimServer, lab_target: Target) -> None:
    """Two threads that meet the end of a session begin one new session."""
    with Session(lab_target) as session, session.wire() as wire:
        login = JsonLogin(lab_target, session.api_version, session.service["sessionManager"])
        first = login.log_in(wire, earlier_key="")
        assert login.log_in(wire, earlier_key="") == first
        second = login.log_in(wire, earlier_key=first)
        assert second != first
        assert len(list(lab.world.sessions)) == 3
        login.key = first
        login.log_out(wire)
        login.key = second
        login.log_out(wire)


@pytest.mark.long
def test_a_reply_that_names_no_session_is_refused(lab_target: Target) -> None:
    with Session(lab_target) as session, answering("Login", OK):
        session.read_over_vi_json(alone=True)
        with pytest.raises(ProtocolError, match="returns no session key"):
            inventory(session)
