"""Reads samples of many VMs and hosts in bulk with QueryPerf, in CSV, parsed by lxml and numpy and not by pyVmomi.

A host keeps its samples of 20 s for an hour; vCenter keeps five-minute averages of a day of those counters that its
statistics level says, and tells of at most 64 counters in one call (`config.vpxd.stats.maxQueryMetrics`, from memory).
Whoever asks says before each call that it comes (`pace`), so that calls in a minute are bounded.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from gpuops.errors import GpuopsError
from gpuops.model.measurements.measurement import Samples
from gpuops.model.time_text import format_stamp
from gpuops.vsphere.reading.bulk.reader import Reader, reading
from gpuops.vsphere.reading.counters import SAMPLE_S, counter_keys
from gpuops.vsphere.transport.request_text import written
from gpuops.vsphere.transport.wire import WireFault
from gpuops.vsphere.transport.xml_values import child, children, moment, number, text

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from gpuops.vsphere.session import Session

ENTITIES_PER_CALL: Final = 50
"""What vCenter answers within seconds (from memory)."""
COUNTERS_PER_CALL: Final = 64
"""Of what vCenter keeps in its database, of all entities of a call together."""


def samples(
    session: Session,
    kind: str,
    refs: Sequence[str],
    names: Sequence[str],
    interval_s: int,
    span: tuple[datetime, datetime],
    pace: Callable[[], None],
) -> Iterator[Sequence[Samples]]:
    """What vCenter has of these counters of VMs or hosts (`kind`), of the samples that end within the span, call by
    call. Of a refused one there is nothing; counters that this vCenter does not have are not asked for.

    Raises NotConnected in its kinds, and ProtocolError for what is no reply.
    """
    keys = counter_keys(session)
    wanted = {keys[name]: name for name in names if name in keys}
    if not wanted:
        return
    at_once = ENTITIES_PER_CALL
    if interval_s != SAMPLE_S:
        at_once = max(1, min(at_once, COUNTERS_PER_CALL // len(wanted)))
    with reading(session) as reader:
        for at in range(0, len(refs), at_once):
            ask = _Asking(session, reader, kind, wanted, interval_s, span, pace)
            yield ask.all_of(refs[at : at + at_once])


class _Asking:
    """One call, halved where vCenter refuses it, down to the entity that it refuses."""

    def __init__(
        self,
        session: Session,
        reader: Reader,
        kind: str,
        wanted: dict[int, str],
        interval_s: int,
        span: tuple[datetime, datetime],
        pace: Callable[[], None],
    ) -> None:
        self._reader = reader
        self._manager = session.service["perfManager"]
        self._session = session
        self._kind = kind
        self._wanted = wanted
        self._pace = pace
        metrics = "".join(
            f"<metricId><counterId>{key}</counterId><instance>{written(instance)}</instance></metricId>"
            for key, name in wanted.items()
            for instance in (("", "*") if kind == "HostSystem" and name.startswith("gpu.") else ("",))
        )
        begin, end = (format_stamp(each) for each in span)
        self._told = (
            f"<startTime>{begin}</startTime><endTime>{end}</endTime>{metrics}"
            f"<intervalId>{interval_s}</intervalId><format>csv</format>"
        )

    def all_of(self, refs: Sequence[str]) -> list[Samples]:
        """What is told of these."""
        specs = "".join(
            f'<querySpec><entity type="{self._kind}">{written(ref)}</entity>{self._told}</querySpec>' for ref in refs
        )
        self._pace()
        try:
            reply = self._reader.call("QueryPerf", self._manager, specs)
        except GpuopsError as error:
            if not isinstance(error.__cause__, WireFault):  # no refusal: a lost connection, or no reply at all
                raise
            if len(refs) == 1:
                return []
            half = len(refs) // 2
            return self.all_of(refs[:half]) + self.all_of(refs[half:])
        asked = frozenset(refs)
        with self._session.decoding("QueryPerf"):
            ends: dict[str, NDArray[np.int64]] = {}
            found = [self._decoded(each, ends) for each in children(reply, "returnval")]
        return [each for each in found if each.entity in asked]

    def _decoded(self, metric: Any, ends: dict[str, NDArray[np.int64]]) -> Samples:
        """The times of a reply are mostly the same in all of it: each is read once."""
        told = text(metric, "sampleInfoCSV") or ""
        if told not in ends:
            ends[told] = _moments(told)
        series: dict[str, NDArray[np.int64]] = {}
        for each in children(metric, "value"):
            of = child(each, "id")
            name, instance = self._wanted.get(number(of, "counterId") or 0), text(of, "instance")
            if name is None:
                continue
            values = np.array([int(value) for value in (text(each, "value") or "").split(",")], dtype=np.int64)
            if len(values) != len(ends[told]):
                raise ValueError("so many values are not of so many samples")
            series[f"{name}@{instance}" if instance else name] = values
        return Samples(text(metric, "entity") or "", ends[told], series)


def _moments(told: str) -> NDArray[np.int64]:
    """`20,<time>,20,<time>`: an interval and an end for each sample."""
    found = [moment(each) for each in told.split(",")[1::2]]
    if None in found:
        raise ValueError("a sample without a time")
    return np.array([int(each.timestamp()) for each in found if each is not None], dtype=np.int64)
