"""Whatever a server sends: ProtocolError, exit code 5, within 256 MB and 5 s of CPU above idle, and never a signal."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from datetime import datetime
from typing import Any
from xml.parsers.expat import ExpatError

import pytest

from gpuops.errors import NotConnected, ProtocolError
from gpuops.model.vcenter.target import Secret, Target
from gpuops.vsphere.session import Session
from gpuops.vsphere.transport import network
from gpuops.vsphere.transport.messages import elements
from gpuops.vsphere.transport.stub import deserialize_reply
from gpuops.vsphere.transport.wire import parse_reply
from tests.sample import mostly_long
from tests.wire.hostile.hostile_replies import Hostile, _chain, _time_reply, large, nonsense, small
from tests.wire.hostile.hostile_server import HostileServer

PARSERS = ["lxml", "pyvmomi"]
IN_MEMORY = {
    name: hostile for name, hostile in small().items() if hostile.status.startswith("200") and "M6" not in name
}


@pytest.fixture(scope="module")
def hostile_server() -> Iterator[HostileServer]:
    with HostileServer() as server:
        yield server


def struck(server: HostileServer, parser: str, strike: Hostile) -> subprocess.CompletedProcess[str]:
    """What becomes of a client whose first read over this parser is answered so."""
    method = "RetrievePropertiesEx" if parser == "lxml" or b"RetrievePropertiesEx" in strike.body else "CurrentTime"
    server.strikes = {method: strike}
    return subprocess.run(
        [sys.executable, "-m", "tests.wire.hostile.hostile_child", str(server.port), parser, server.honest.username],
        input=server.honest.password,
        capture_output=True,
        encoding="utf-8",
        timeout=60,
        check=False,
        env={**os.environ, "GPUOPS_DEBUG": ""},
    )


def require_refused(child: subprocess.CompletedProcess[str], codes: tuple[int, ...] = (5,)) -> None:
    assert child.returncode in codes, (child.returncode, child.stderr[-500:])
    assert "Traceback" not in child.stderr
    if child.returncode:
        assert child.stderr.startswith("error: 127.0.0.1:") or child.stderr.startswith("error: vCenter")
        assert len(child.stderr) < 500


@pytest.mark.long
@pytest.mark.parametrize("parser", mostly_long(PARSERS, ["pyvmomi"]))
def test_an_honest_reply_is_read_within_those_limits(hostile_server: HostileServer, parser: str) -> None:
    child = struck(hostile_server, parser, Hostile())  # to see that the server strikes
    require_refused(child)
    hostile_server.strikes = {}
    honest = subprocess.run(
        [
            sys.executable,
            "-m",
            "tests.wire.hostile.hostile_child",
            str(hostile_server.port),
            parser,
            hostile_server.honest.username,
            "60",
        ],
        input=hostile_server.honest.password,
        capture_output=True,
        encoding="utf-8",
        timeout=60,
        check=False,
    )
    assert (honest.returncode, honest.stderr) == (0, "")


@pytest.mark.long
@pytest.mark.parametrize("parser", mostly_long(PARSERS, ["pyvmomi"]))
def test_entities_that_crash_a_parser_are_never_parsed(hostile_server: HostileServer, parser: str) -> None:
    """A hundred thousand within each other end a process by SIGSEGV in libexpat before 2.7.0 (CVE-2024-8176)."""
    require_refused(struck(hostile_server, parser, Hostile(_time_reply("&e99999;", _chain(100_000)))))


@pytest.mark.parametrize("name", IN_MEMORY)
def test_lxml_never_has_it(name: str) -> None:
    with pytest.raises(ProtocolError, match=r"^vc:443 sends "):
        parse_reply(IN_MEMORY[name].body, "vc:443")


@pytest.mark.parametrize("name", [*IN_MEMORY, *nonsense()])
def test_pyvmomi_never_makes_a_value_of_it(name: str) -> None:
    from pyVmomi import vmodl

    strike = {**IN_MEMORY, **nonsense()}[name]
    bulk = b"RetrievePropertiesEx" in strike.body
    result: Any = vmodl.query.PropertyCollector.RetrieveResult if bulk else datetime
    with pytest.raises(network.UNREADABLE_ERRORS) as raised:
        deserialize_reply(strike.body, result, None)
    assert isinstance(raised.value, (network.UnreadableReply, ExpatError))


@pytest.mark.long
def test_no_entity_is_ever_replaced() -> None:
    """The test of the parsers' own settings, behind the check of the bytes."""
    with pytest.raises(network.UnreadableReply, match="document type"):
        elements(b'<!DOCTYPE a [<!ENTITY x "y">]><a>&x;</a>')


@pytest.mark.long
@pytest.mark.parametrize("name", ["X9 redirect", "X17 HTML", "M6 id with elements"])
def test_a_session_says_so_and_logs_out(hostile_server: HostileServer, name: str) -> None:
    from gpuops.vsphere.reading import collect

    honest = hostile_server.honest
    hostile_server.strikes = {"RetrievePropertiesEx": small()[name]}
    target = Target("127.0.0.1", honest.username, Secret(honest.password), port=hostile_server.port, tls=False)
    with pytest.raises(NotConnected), Session(target) as session:
        collect.inventory(session)
    assert list(honest.world.sessions) == []


@pytest.mark.long
@pytest.mark.timeout(600)
@pytest.mark.parametrize("parser", PARSERS)
def test_small_ones_in_a_small_child(hostile_server: HostileServer, parser: str) -> None:
    for strike in small().values():
        require_refused(struck(hostile_server, parser, strike))


@pytest.mark.long
@pytest.mark.timeout(600)
@pytest.mark.parametrize("parser", PARSERS)
def test_nonsense_in_a_small_child(hostile_server: HostileServer, parser: str) -> None:
    """lxml's reader takes what it does not understand as unknown; pyVmomi's types refuse it."""
    for strike in nonsense().values():
        require_refused(struck(hostile_server, parser, strike), (5,) if parser == "pyvmomi" else (0, 5))


@pytest.mark.long
@pytest.mark.timeout(600)
@pytest.mark.parametrize("parser", PARSERS)
@pytest.mark.parametrize("name", large())
def test_large_ones_in_a_small_child(hostile_server: HostileServer, parser: str, name: str) -> None:
    codes = (0, 5) if "as far as allowed" in name else (5,)
    require_refused(struck(hostile_server, parser, large()[name]()), codes)
