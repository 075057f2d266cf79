"""Guests of several VMs of `training` that run real processes: each has an address, and they reach each other."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from pyVim.connect import Disconnect, SmartConnect
from pyVmomi import vim

from gpuops.sim.guests.marked_processes import pids_with_mark
from gpuops.sim.server import SimServer, start
from tests.sim.guests.guests_of import Guest
from tests.sim.guests.training import training_with_real_guests

pytestmark = pytest.mark.long

AUTH = vim.vm.guest.NamePasswordAuthentication(username="ml", password="Kept4now", interactiveSession=False)
NODES = ("node-1", "node-2", "node-3", "node-4")
SERVE = b"""
import os, socket
with socket.create_server((os.environ["GPUOPS_GUEST_ADDRESS"], 29500)) as served:
    link, peer = served.accept()
    link.sendall(os.environ["GPUOPS_GUEST_NAME"].encode() + b" to " + link.recv(64))
"""
ASK = b"""
import os, socket, sys, time
here = (os.environ["GPUOPS_GUEST_ADDRESS"], 0)
for _ in range(200):
    try:
        link = socket.create_connection((sys.argv[1], 29500), source_address=here)
        break
    except ConnectionRefusedError:
        time.sleep(0.05)
link.sendall(os.environ["GPUOPS_GUEST_NAME"].encode())
with open("asked", "wb") as answer:
    answer.write(link.recv(64))
"""
PYTHON = "/usr/bin/env python3"


@pytest.fixture
def server(tmp_path: Path) -> Iterator[SimServer]:
    with start(training_with_real_guests(tmp_path), clock="virtual") as running:
        yield running
        assert running.world.bugs == []


@pytest.fixture
def guest(server: SimServer) -> Iterator[Guest]:
    service = SmartConnect(**server.login)
    yield Guest(server, service, "trainer", AUTH)
    Disconnect(service)


def clone(guest: Guest, name: str, host: str) -> None:
    content = guest.service.content
    view = content.viewManager.CreateContainerView(content.rootFolder, [vim.HostSystem], True)
    [host_entity] = [candidate for candidate in view.view if candidate.name == host]
    place = vim.vm.RelocateSpec(host=host_entity, pool=host_entity.parent.resourcePool)
    spec = vim.vm.CloneSpec(location=place, template=False, powerOn=False)
    folder = content.rootFolder.childEntity[0].vmFolder
    new_vm = guest.wait(guest.vm.CloneVM_Task(folder, name, spec))
    guest.wait(new_vm.PowerOnVM_Task())


def test_four_guests_have_addresses_of_their_own_and_reach_each_other(server: SimServer, guest: Guest) -> None:
    for number, name in enumerate(NODES, start=1):
        clone(guest, name, f"esx-{number:02}.trn")
    nodes = [guest.of(name) for name in NODES]
    places = [node.temporary_directory() for node in nodes]
    addresses = [str(node.vm.guest.ipAddress) for node in nodes]
    assert len(set(addresses)) == 4
    for node, place in zip(nodes, places, strict=True):
        node.write(f"{place}/serve.py", SERVE)
        node.write(f"{place}/ask.py", ASK)
    # a ring: each listens on one port, and asks the next
    ends = [
        (node, node.run("serve.py", program=PYTHON, directory=place)) for node, place in zip(nodes, places, strict=True)
    ]
    for number, (node, place) in enumerate(zip(nodes, places, strict=True), start=1):
        ends.append((node, node.run(f"ask.py {addresses[number % 4]}", program=PYTHON, directory=place)))
    assert [node.ended(pid).exitCode for node, pid in ends] == [0] * 8
    greetings = [node.read(f"{place}/asked").decode() for node, place in zip(nodes, places, strict=True)]
    assert greetings == ["node-2 to node-1", "node-3 to node-2", "node-4 to node-3", "node-1 to node-4"]


def test_what_runs_in_one_ends_with_it_alone(server: SimServer, guest: Guest) -> None:
    for name in NODES[:2]:
        clone(guest, name, "esx-01.trn")
    first, second = guest.of("node-1"), guest.of("node-2")
    for node in (first, second):
        node.run("-c 'sleep 300'")
    mark = first.mark
    assert first.marked()
    assert second.marked()
    guest.wait(first.vm.PowerOffVM_Task())
    assert list(pids_with_mark(mark)) == []
    assert second.marked()
