"""The guarded parser beside pyVmomi's own, on one reply with 5,000 VMs.

That is nearly as much as one reply may hold that is read into types (`MOST_TYPED`).

In one process, in turns: the limits cost a look at each element, and must not make reading slower than it was.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable
from statistics import median
from typing import Any, Final

from pyVmomi import SoapAdapter, vmodl

from gpuops.model.vcenter.target import Secret, Target
from gpuops.vsphere.transport.messages import elements
from gpuops.vsphere.transport.stub import Stub, deserialize_reply
from tests.bench.verdict import Figure, Result

VMS: Final = 5_000
ROUNDS: Final = 5
BUDGET_RATIO: Final = 1.0
_HEAD: Final = (
    '<?xml version="1.0" encoding="UTF-8"?><soapenv:Envelope xmlns:soapenv="http://schemas.xmlsoap.org/soap/envelope/"'
    ' xmlns:xsd="http://www.w3.org/2001/XMLSchema" xmlns:xsi="http://www.w3.org/2001/XMLSchema-instance"><soapenv:Body>'
    '<RetrievePropertiesExResponse xmlns="urn:vim25"><returnval>'
)
_TAIL: Final = "</returnval></RetrievePropertiesExResponse></soapenv:Body></soapenv:Envelope>"


def run() -> Result:
    """CPU of ours as a multiple of pyVmomi's, the median of rounds in turns; lxml's reading of the same beside them."""
    reply = (_HEAD + "".join(map(_vm, range(VMS))) + _TAIL).encode()
    stub = Stub(Target("vc", "u", Secret("p")), "8.0.3.0", "")
    kind: Any = vmodl.query.PropertyCollector.RetrieveResult
    parsers: tuple[Callable[[], Any], ...] = (
        lambda: SoapAdapter.SoapResponseDeserializer(stub).Deserialize(reply, kind),
        lambda: deserialize_reply(reply, kind, stub),
        lambda: elements(reply),
    )
    for parse in parsers:
        parse()  # types are loaded when they are first met
    rounds = [[_cpu_s(parse) for parse in parsers] for _ in range(ROUNDS)]
    theirs, ours, bulk = (median(column) for column in zip(*rounds, strict=True))
    ratio = median(ours_s / theirs_s for theirs_s, ours_s, _ in rounds)
    return Result(
        f"a reply with {VMS:,} VMs, {len(reply) / 1024**2:.1f} MiB",
        (
            Figure("CPU, guarded / pyVmomi's own", ratio, "x", BUDGET_RATIO),
            Figure("pyVmomi's own", theirs, "s"),
            Figure("guarded", ours, "s"),
            Figure("lxml, guarded: what reads inventories", bulk, "s"),
        ),
    )


def _cpu_s(parse: Callable[[], Any]) -> float:
    gc.collect()
    began = time.process_time()
    parse()
    return time.process_time() - began


def _vm(number: int) -> str:
    values = (
        ("config.instanceUuid", "xsd:string", f"503c{number:028d}"),
        ("config.template", "xsd:boolean", "false"),
        ("name", "xsd:string", f"vm-{number:05d}"),
        ("runtime.powerState", "VirtualMachinePowerState", "poweredOn"),
        ("summary.config.memorySizeMB", "xsd:int", "16384"),
        ("summary.config.numCpu", "xsd:int", "8"),
    )
    properties = "".join(
        f'<propSet><name>{name}</name><val xsi:type="{kind}">{value}</val></propSet>' for name, kind, value in values
    )
    ref = f'<val type="HostSystem" xsi:type="ManagedObjectReference">host-{number % 99}</val>'
    host = f"<propSet><name>runtime.host</name>{ref}</propSet>"
    return f'<objects><obj type="VirtualMachine">vm-{number}</obj>{properties}{host}</objects>'
