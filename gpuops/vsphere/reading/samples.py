"""Reads samples of many VMs and hosts in bulk with QueryPerf, in CSV, parsed by lxml and numpy and not by pyVmomi.

A host stores its samples of 20 s for an hour. vCenter stores five-minute averages of a day for the counters of its
statistics level, and returns at most 64 counters in one call (`config.vpxd.stats.maxQueryMetrics`, from memory). The
caller's `pace` is called before each call, and bounds the calls per minute.
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
from gpuops.vsphere.transport.request_text import escape_text
from gpuops.vsphere.transport.wire import WireFault
from gpuops.vsphere.transport.xml_values import child, children, moment, number, text

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from gpuops.vsphere.session import Session

ENTITIES_PER_CALL: Final = 50
"""What vCenter answers within seconds (from memory)."""
COUNTERS_PER_CALL: Final = 64
"""The limit for counters in vCenter's database, over all entities of a call."""


def samples(
    session: Session,
    kind: str,
    refs: Sequence[str],
    names: Sequence[str],
    interval_s: int,
    span: tuple[datetime, datetime],
    pace: Callable[[], None],
) -> Iterator[Sequence[Samples]]:
    """Yield the samples of these counters of VMs or hosts (`kind`) that end within the span, call by call.

    There are no samples of entities that vCenter refuses, or of counters that it does not have.
    Raises NotConnected and its subclasses, and ProtocolError for an unreadable reply.
    """
    keys = counter_keys(session)
    names_by_key = {keys[name]: name for name in names if name in keys}
    if not names_by_key:
        return
    refs_per_call = ENTITIES_PER_CALL
    if interval_s != SAMPLE_S:
        refs_per_call = max(1, min(refs_per_call, COUNTERS_PER_CALL // len(names_by_key)))
    with reading(session) as reader:
        for start in range(0, len(refs), refs_per_call):
            query = _SamplesQuery(session, reader, kind, names_by_key, interval_s, span, pace)
            yield query.read(refs[start : start + refs_per_call])


class _SamplesQuery:
    """One call, halved where vCenter refuses it, down to the entity that it refuses."""

    def __init__(
        self,
        session: Session,
        reader: Reader,
        kind: str,
        names_by_key: dict[int, str],
        interval_s: int,
        span: tuple[datetime, datetime],
        pace: Callable[[], None],
    ) -> None:
        self._reader = reader
        self._manager = session.service["perfManager"]
        self._session = session
        self._kind = kind
        self._names_by_key = names_by_key
        self._pace = pace
        metrics = "".join(
            f"<metricId><counterId>{key}</counterId><instance>{escape_text(instance)}</instance></metricId>"
            for key, name in names_by_key.items()
            for instance in (("", "*") if kind == "HostSystem" and name.startswith("gpu.") else ("",))
        )
        begin, end = (format_stamp(limit) for limit in span)
        self._arguments = (
            f"<startTime>{begin}</startTime><endTime>{end}</endTime>{metrics}"
            f"<intervalId>{interval_s}</intervalId><format>csv</format>"
        )

    def read(self, refs: Sequence[str]) -> list[Samples]:
        """Return the samples of these entities."""
        specs = "".join(
            f'<querySpec><entity type="{self._kind}">{escape_text(ref)}</entity>{self._arguments}</querySpec>'
            for ref in refs
        )
        self._pace()
        try:
            reply = self._reader.call("QueryPerf", self._manager, specs)
        except GpuopsError as error:
            if not isinstance(error.__cause__, WireFault):  # no fault: a lost connection, or an unreadable reply
                raise
            if len(refs) == 1:
                return []
            half = len(refs) // 2
            return self.read(refs[:half]) + self.read(refs[half:])
        requested_refs = frozenset(refs)
        with self._session.decoding("QueryPerf"):
            ends: dict[str, NDArray[np.int64]] = {}
            decoded_samples = [self._decode_metric(metric, ends) for metric in children(reply, "returnval")]
        return [decoded for decoded in decoded_samples if decoded.entity in requested_refs]

    def _decode_metric(self, metric: Any, ends: dict[str, NDArray[np.int64]]) -> Samples:
        """Return the samples of one entity. Most entities of a reply have the same times: each text is parsed once."""
        sample_info = text(metric, "sampleInfoCSV") or ""
        if sample_info not in ends:
            ends[sample_info] = _parse_ends(sample_info)
        series: dict[str, NDArray[np.int64]] = {}
        for counter_series in children(metric, "value"):
            counter_id = child(counter_series, "id")
            name, instance = self._names_by_key.get(number(counter_id, "counterId") or 0), text(counter_id, "instance")
            if name is None:
                continue
            readings = np.array(
                [int(reading) for reading in (text(counter_series, "value") or "").split(",")], dtype=np.int64
            )
            if len(readings) != len(ends[sample_info]):
                raise ValueError("so many values are not of so many samples")
            series[f"{name}@{instance}" if instance else name] = readings
        return Samples(text(metric, "entity") or "", ends[sample_info], series)


def _parse_ends(sample_info: str) -> NDArray[np.int64]:
    """Return the ends of the samples in seconds, from an interval and an end of each: `20,<time>,20,<time>`."""
    sample_ends = [moment(sample_end) for sample_end in sample_info.split(",")[1::2]]
    if None in sample_ends:
        raise ValueError("a sample without a time")
    return np.array(
        [int(sample_end.timestamp()) for sample_end in sample_ends if sample_end is not None], dtype=np.int64
    )
