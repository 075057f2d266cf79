"""What a client asks of a simulated vCenter that has a fault of the catalogue in store, and what its ledger says."""

from __future__ import annotations

import http.client
from typing import Any
from xml.parsers.expat import ExpatError

from pyVmomi import vim

from gpuops.sim.core.object_store import OTHER_USER
from gpuops.sim.fault_injection.rule import rules_of
from tests.sim.lab import Lab, Q

OPENED: list[http.client.HTTPConnection] = []
BROKEN = (OSError, http.client.HTTPException, ExpatError)


def give(lab: Lab, fault_id: str, **changes: Any) -> None:
    """Have a fault of the catalogue in store."""
    for rule in rules_of(fault_id, changes):
        lab.world.injector.add(rule)


def effects(lab: Lab, method: str = "*") -> list[str]:
    """The ledger's methods, of this client only."""
    return [
        change.method for change in lab.world.ledger if change.user != OTHER_USER and method in ("*", change.method)
    ]


def ledger_of_others(lab: Lab) -> list[tuple[str, str]]:
    return [(change.method, change.name) for change in lab.world.ledger if change.user == OTHER_USER]


def powers(lab: Lab, name: str) -> list[Any]:
    """Name and power state of a VM in one bulk read."""
    prop_spec = Q.PropertySpec(type=vim.VirtualMachine, pathSet=["name", "runtime.powerState"])
    spec = Q.FilterSpec(objectSet=[Q.ObjectSpec(obj=lab.vm(name))], propSet=[prop_spec])
    objects: list[Any] = lab.si.content.propertyCollector.RetrievePropertiesEx([spec], Q.RetrieveOptions()).objects
    return objects


def wait(lab: Lab) -> None:
    lab.si.content.propertyCollector.WaitForUpdatesEx("", Q.WaitOptions(maxWaitSeconds=0))


def bare(lab: Lab, timeout_s: float = 5) -> http.client.HTTPConnection:
    """A connection to the served world with nothing of pyVmomi in it."""
    opened = http.client.HTTPConnection(lab.si._stub.host, timeout=timeout_s)
    OPENED.append(opened)
    return opened


def post(connection: http.client.HTTPConnection) -> None:
    body = (
        '<soapenv:Envelope xmlns:soapenv="http://schemas.xmlsoap.org/soap/envelope/"><soapenv:Body>'
        '<RetrieveServiceContent xmlns="urn:vim25"><_this type="ServiceInstance">ServiceInstance</_this>'
        "</RetrieveServiceContent>"
        "</soapenv:Body></soapenv:Envelope>"
    )
    connection.request("POST", "/sdk", body, {"SOAPAction": '"urn:vim25/8.0.3.0"'})


def send_request(connection: http.client.HTTPConnection) -> tuple[int, bytes]:
    post(connection)
    response = connection.getresponse()
    return response.status, response.read()
