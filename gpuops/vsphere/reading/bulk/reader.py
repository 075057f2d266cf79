"""Bulk reads of properties with RetrievePropertiesEx, parsed by lxml or msgspec and not by pyVmomi; `collect` calls it.

One container view holds all objects; its pages come over a connection of their own, and each is decoded and released
before the next is requested.

If a read over VI/JSON fails (by its status, a reply that cannot be decoded, a missing page or a fault), the session
warns once, does not use VI/JSON any more, and repeats the read over SOAP.

The property paths to read stand at the end of this module, by managed object type. `config`, `hardware` and `summary`
are never read completely: for a host they are 119 kB, and a snapshot needs a twentieth. `supported_paths` leaves out
paths that the negotiated API version does not have: one of them would fail the complete read (InvalidProperty).
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final, TypeVar

from gpuops import clock
from gpuops.errors import GpuopsError, ProtocolError
from gpuops.plan.core.versions import version_numbers
from gpuops.vsphere.faults import fault_error
from gpuops.vsphere.reading.bulk.pages import (
    AROUND_VMS,
    PAGE_OBJECTS,
    Pages,
    PathsByType,
    ReadObject,
    ReadStart,
    object_start,
    view_start,
)
from gpuops.vsphere.reading.bulk.soap_pages import SoapPages
from gpuops.vsphere.session import Session
from gpuops.vsphere.transport import network
from gpuops.vsphere.transport.wire import SessionEnded, Wire, WireFault

DEADLINE_S: Final = 600
"""The limit of one read with all its pages."""
JSON_DEADLINE_S: Final = 300
"""The limit over VI/JSON; then it is read over SOAP."""
MOST_IN_A_PAGE: Final = 20_000
"""Objects in one reply of a server that ignores the requested page size."""
MOST_OBJECTS: Final = 1_000_000
"""Objects in one read of a complete vCenter: ten times the VMs of the largest fleet."""
MOST_AROUND: Final = 200
"""Recent tasks, places above and datastores of one VM; vCenter lists a few of each."""

Record = TypeVar("Record")
Answer = TypeVar("Answer")


@contextmanager
def reading(session: Session) -> Iterator[Reader]:
    """Provide a reader with a connection of its own for the `with` block."""
    with session.wire() as wire:
        yield Reader(session, wire)


class Reader:
    """Bulk reads of one session, on one of its connections."""

    def __init__(self, session: Session, wire: Wire) -> None:
        self._session = session
        self._wire = wire
        self._soap = SoapPages(session, wire)

    def read_all(
        self,
        paths_by_type: PathsByType,
        decode: Callable[[ReadObject], Record],
        extra_objects: Collection[tuple[str, str]] = (),
    ) -> list[Record]:
        """Return the results of `decode` for all objects of these types below the root folder, and `extra_objects`
        (type, id). For the type `Task`, these are the recent tasks of VMs.

        `decode` must not keep parts of the reply, which is freed with its page. Raises NotConnected and its subclasses.
        """
        return self._read_bulk(
            lambda pages, until: self._read_through_view(pages, until, paths_by_type, decode, extra_objects)
        )

    def read_named(
        self, paths_by_type: PathsByType, refs: Iterable[tuple[str, str]], decode: Callable[[ReadObject], Record]
    ) -> list[Record]:
        """Return the results of `decode` for these objects (type, id), without those that do not exist any more.

        If `paths_by_type` has types of `AROUND_VMS`, the recent tasks, parents and datastores of VMs are read too.
        """
        objects = list(refs)
        records: list[Record] = []
        for start in range(0, len(objects), PAGE_OBJECTS):
            page = objects[start : start + PAGE_OBJECTS]
            records += self._read_bulk(
                functools.partial(self._read_page_of_refs, paths_by_type=paths_by_type, page=page, decode=decode)
            )
        return records

    def call(self, method: str, target: tuple[str, str], arguments: str = "") -> Any:
        """Return the response element of one read over SOAP.

        Raises the error of its fault, or NotConnected and its subclasses.
        """
        try:
            return _retry_after_login(self._soap, lambda: self._wire.ask(method, target, arguments))
        except WireFault as fault:
            raise fault_error(fault.fault, f"{method}: {fault}") from fault

    def _read_bulk(self, read: Callable[[Pages, float], Answer]) -> Answer:
        """Return the result of `read` over VI/JSON if the session uses it, and over SOAP otherwise or if that fails."""
        login = self._session.vi_json
        if login is not None:
            from gpuops.vsphere.reading.bulk.json_pages import JsonPages

            try:
                return self._read_with_retry(JsonPages(self._session, login, self._wire), read, JSON_DEADLINE_S)
            except GpuopsError as error:
                if self._session.vi_json_alone:
                    raise
                self._session.read_over_soap(error.message)
        return self._read_with_retry(self._soap, read, DEADLINE_S)

    def _read_with_retry(self, pages: Pages, read: Callable[[Pages, float], Answer], limit_s: float) -> Answer:
        """Return the result of `read`, called with the pages and the deadline in `limit_s` seconds."""
        deadline = clock.passed_s() + limit_s
        try:
            return _retry_after_login(pages, lambda: read(pages, deadline))
        except WireFault as fault:
            address = self._session.target.address
            hint = "run the command again; the vpxd log of vCenter shows why it refused the read"
            raise ProtocolError(
                f"{address} refuses a bulk read: {fault.fault or 'fault'}: {fault}", hint=hint
            ) from fault

    def _read_through_view(
        self,
        pages: Pages,
        until: float,
        paths_by_type: PathsByType,
        decode: Callable[[ReadObject], Record],
        extra_objects: Collection[tuple[str, str]],
    ) -> list[Record]:
        """Return the results of `decode` for the objects in a view of the root folder, and `extra_objects`."""
        # types that the container view cannot contain: they are read through its VMs, or by their ids
        types_outside_view = {"Task", *(name for name, _ in extra_objects)}
        types = [name for name in paths_by_type if name not in types_outside_view]
        # A view belongs to its login and shows the present objects at each read.
        views, type_names = self._session.idle_views, " ".join(types)
        # taken out of the idle views, so that no other thread reads through it meanwhile
        view = views.pop((pages.login, type_names), "") or pages.new_view(types)
        # The view itself is read too. A reply without it is not the answer to this read; a reply with the view alone
        # is that of an empty vCenter.
        with_view = {**paths_by_type, "ContainerView": ("container",)}
        views_read: list[str] = []

        def decode_or_note_view(read_object: ReadObject) -> Record | None:
            if read_object.type != "ContainerView":
                return decode(read_object)
            views_read.append(read_object.ref)
            return None

        starts = [
            view_start(view, "Task" in paths_by_type),
            *(object_start(*extra_object) for extra_object in extra_objects),
        ]
        records = self._read(pages, until, with_view, starts, decode_or_note_view, MOST_OBJECTS)
        if views_read != [view]:
            raise ProtocolError(
                f"{self._session.target.address} answers a read of its inventory without the view that gpuops read",
                hint="check that the address is that of a vCenter; gpuops did not use the reply",
            )
        # `pages.login` is a new one if the session was logged in again meanwhile
        views[(pages.login, type_names)] = view
        return [decoded for decoded in records if decoded is not None]

    def _read_page_of_refs(
        self,
        pages: Pages,
        until: float,
        *,
        paths_by_type: PathsByType,
        page: Sequence[tuple[str, str]],
        decode: Callable[[ReadObject], Record],
    ) -> list[Record]:
        # a VM may bring further objects with it: its tasks, parents and datastores
        refs, around = {ref for _, ref in page}, AROUND_VMS.intersection(paths_by_type)
        starts = [object_start(*vcenter_object, around) for vcenter_object in page]
        max_objects = len(refs) * (1 + MOST_AROUND) if around else len(refs)
        return self._read(
            pages,
            until,
            paths_by_type,
            starts,
            lambda vcenter_object: decode(_require_requested(vcenter_object, refs, around)),
            max_objects,
        )

    def _read(
        self,
        pages: Pages,
        until: float,
        paths_by_type: PathsByType,
        starts: Sequence[ReadStart],
        decode: Callable[[ReadObject], Record],
        max_objects: int,
    ) -> list[Record]:
        """Return the results of `decode` for the objects of all pages. Raises ProtocolError for more objects."""
        records = list[Record]()
        page = pages.first(paths_by_type, starts, until)
        while True:
            token: str | None = None
            count_before = len(records)
            with network.decoding(self._session.target.address, "a bulk read"):
                for next_token, objects in page:
                    token = next_token  # the same for all pieces of a page
                    records += map(decode, objects)
                    if len(records) > min(max_objects, count_before + MOST_IN_A_PAGE):
                        raise network.UnreadableReply(f"more than {min(max_objects, MOST_IN_A_PAGE):,} objects")
                # else a server could keep gpuops reading without end
                if token is not None and len(records) == count_before:
                    raise network.UnreadableReply("pages without objects, one after the other")
            if token is None:
                return records
            page = pages.next(token, until)


def _retry_after_login(pages: Pages, read: Callable[[], Answer]) -> Answer:
    """Return the result of `read`. If the session has ended, log in again and repeat it once."""
    try:
        return read()
    except SessionEnded:
        pages.log_in_again()
    try:
        return read()
    except SessionEnded as ended:
        raise ProtocolError("vCenter ended a new session at once", hint="look into the vpxd log of vCenter") from ended


def _require_requested(read_object: ReadObject, refs: Collection[str], around: Collection[str]) -> ReadObject:
    """Return the object if its ref, or its type around VMs, was requested. Raises ProtocolError otherwise."""
    if read_object.ref not in refs and read_object.type not in around:
        raise ProtocolError(f"vCenter returned {read_object.type} {read_object.ref}, which gpuops did not ask for")
    return read_object


FOLDERS: Final = ("name", "parent")

CLUSTER: Final = (
    "name",
    "parent",
    "configurationEx",  # drsConfig and drsVmConfig are not paths of their own on a ComputeResource
)

COMPUTE_RESOURCE: Final = ("name", "parent")

VAPP: Final = ("name", "parent", "parentFolder")

DATASTORE: Final = ("name", "summary.freeSpace", "summary.accessible")

HOST: Final = (
    "name",
    "parent",
    "runtime.connectionState",
    "runtime.inMaintenanceMode",
    "runtime.bootTime",
    "hardware.systemInfo.uuid",
    "config.product.version",
    "hardware.memorySize",
    "hardware.cpuInfo",
    "hardware.numaInfo",
    "summary.quickStats.overallMemoryUsage",
    "config.graphicsInfo",
    "config.graphicsConfig",
    "config.sharedPassthruGpuTypes",
    "config.sharedGpuCapabilities",
    "config.pciPassthruInfo",
    "config.assignableHardwareBinding",
    "datastore",
)

HOST_DEVICES: Final = ("hardware.pciDevice",)
"""17 of the 22 kB of a GPU host; read only if the thin read shows a GPU or a passthrough device."""

VM: Final = (
    "name",
    "parent",
    "parentVApp",
    "runtime.host",
    "runtime.powerState",
    "runtime.suspendTime",
    "runtime.bootTime",
    "runtime.connectionState",
    "runtime.question",
    "runtime.numMksConnections",
    "config.instanceUuid",
    "config.template",
    "config.managedBy",
    "summary.config.numCpu",
    "summary.config.memorySizeMB",
    "summary.quickStats.overallCpuUsage",
    "customValue",
    "recentTask",
    "rootSnapshot",
    "datastore",
)

VM_DETAIL: Final = (
    "config.hardware.device",
    "config.extraConfig",
    "config.changeVersion",
    "config.firmware",
    "config.version",
    "config.hardware.numCoresPerSocket",
    "config.memoryAllocation.reservation",
    "config.cpuAllocation.reservation",
    "config.memoryReservationLockedToMax",
    "config.cpuHotAddEnabled",
    "config.nestedHVEnabled",
    "config.numaInfo.coresPerNumaNode",
    "config.numaInfo.autoCoresPerNumaNode",
    "guest.toolsRunningStatus",
)

TASK: Final = ("info.name", "info.state")

SWITCH: Final = (
    "name",
    "uuid",
    "config",  # maxMtu is that of VMware's own switches, and no path of its own
)

PORT_GROUP: Final = ("name", "key", "config.distributedVirtualSwitch")

NETWORK_OF_HOST: Final = (
    "config.network.pnic",
    "config.network.vnic",
    "config.network.rdmaDevice",
    "config.pciPassthruInfo",
    "hardware.numaInfo",
)

RDMA_SETTINGS: Final = ("config.option", "config.firewall")

CUSTOM_FIELDS: Final = ("field",)

_SINCE: Final = {
    "config.sharedGpuCapabilities": "6.7",
    "config.assignableHardwareBinding": "7.0.0.0",
    "config.network.rdmaDevice": "7.0.0.0",
    "config.numaInfo.coresPerNumaNode": "8.0.0.1",
    "config.numaInfo.autoCoresPerNumaNode": "8.0.0.1",
}
"""Source: "since" in the vSphere API reference (Web Services)."""


def supported_paths(paths: tuple[str, ...], api_version: str) -> tuple[str, ...]:
    """Return the paths that this API version has."""
    available_version = version_numbers(api_version)
    return tuple(path for path in paths if version_numbers(_SINCE.get(path, "0")) <= available_version)
