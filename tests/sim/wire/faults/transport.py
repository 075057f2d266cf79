"""Faults of the transport (T), by a bare connection where pyVmomi would hide them, and of vCenter's clock (K)."""

from __future__ import annotations

import http.client
import ssl

import pytest

from gpuops.sim.server import SimServer
from tests.sim.lab import Lab
from tests.sim.wire.faults.clients import BROKEN, bare, effects, give, post, send_request


def sees_T1(lab: Lab) -> None:
    give(lab, "T1")
    with pytest.raises(BROKEN):
        lab.vm("vdi-01").SuspendVM_Task()
    assert lab.world.tasks.unfinished() == []


def sees_T2(lab: Lab) -> None:
    give(lab, "T2")
    with pytest.raises(BROKEN):
        lab.vm("vdi-01").SuspendVM_Task()
    lab.let_pass(600)
    assert effects(lab) == ["SuspendVM_Task"]


def sees_T3(lab: Lab) -> None:
    give(lab, "T3")
    connection = bare(lab)
    assert send_request(connection)[0] == 200
    with pytest.raises((http.client.RemoteDisconnected, ConnectionError)):
        send_request(connection)


def sees_T4(lab: Lab) -> None:
    give(lab, "T4", method="*")
    with pytest.raises((http.client.IncompleteRead, ssl.SSLEOFError)):
        send_request(bare(lab))


def sees_T5(lab: Lab) -> None:
    give(lab, "T5", method="*")
    status, body = send_request(bare(lab))
    assert status == 200
    assert b"</soapenv:Envelope>" not in body


def sees_T6(lab: Lab) -> None:
    give(lab, "T6", method="Retrieve*")
    assert send_request(bare(lab)) == (200, b"<html><body>It works!</body></html>")


def sees_T7(lab: Lab) -> None:
    give(lab, "T7", method="Retrieve*")
    with pytest.raises(TimeoutError):
        send_request(bare(lab, timeout_s=0.3))


def sees_T8(lab: Lab) -> None:
    give(lab, "T8", delay_s=0.2)
    connection = bare(lab, timeout_s=5)
    post(connection)
    response = connection.getresponse()
    assert [len(response.read1(100)), len(response.read1(100))] == [1, 1]


def sees_T9(lab: Lab) -> None:
    give(lab, "T9")
    connection = bare(lab)
    assert [send_request(connection)[0] for _ in range(4)] == [503, 503, 503, 200]


def sees_T10(lab: Lab) -> None:
    give(lab, "T10")
    assert send_request(bare(lab))[0] == 429


def sees_T11(lab: Lab) -> None:
    before = lab.si.CurrentTime()
    give(lab, "T11", method="CurrentTime")
    assert (lab.si.CurrentTime() - before).total_seconds() >= 60


def sees_T12(lab: Lab) -> None:
    give(lab, "T12")
    task = lab.vm("vdi-01").SuspendVM_Task()
    tries = 0
    while True:
        try:
            lab.si.CurrentTime()
            break
        except BROKEN:
            tries += 1
    assert tries == 29  # ten seconds each, until five minutes are over
    assert task.info.state == "success"


def sees_T13(lab: Lab) -> None:
    give(lab, "T13", method="Retrieve*")
    with SimServer(lab.world) as server:
        trusting = ssl.create_default_context(cafile=server.ca_file)
        connection = http.client.HTTPSConnection("127.0.0.1", server.port, context=trusting, timeout=5)
        with pytest.raises(BROKEN):
            send_request(connection)
        connection.close()
        with pytest.raises(ssl.SSLCertVerificationError):
            send_request(connection)


def sees_K7(lab: Lab) -> None:
    before = lab.si.CurrentTime()
    give(lab, "K7", method="CurrentTime")
    assert (lab.si.CurrentTime() - before).total_seconds() > 3599
