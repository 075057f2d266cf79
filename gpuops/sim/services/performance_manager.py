"""The PerformanceManager object: performance counters and their samples."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, ClassVar, Final

from pyVmomi import vim

from gpuops.sim.core.managed_object import ManagedObject, Methods, Properties, method, prop
from gpuops.sim.core.registry import is_kind_of
from gpuops.sim.inventory import faults
from gpuops.sim.render.defaults import described
from gpuops.sim.vcenter.perf_counters import BY_KEY, BY_NAME, COUNTERS, LABELS, Counter, Values

if TYPE_CHECKING:
    from gpuops.sim.core.call import Call
    from gpuops.sim.world import World

REALTIME_S: Final = 20
"""The real-time interval; such samples go back one hour (vSphere API reference, PerformanceManager)."""
LEVEL: Final = 1
"""The statistics level of every historical interval after installation: the database keeps counters up to this level.

Source: vSphere Monitoring and Performance, "Data Collection Levels"."""

_INTERVALS: Final = (
    (1, 300, "Past day", 86_400),
    (2, 1800, "Past week", 604_800),
    (3, 7200, "Past month", 2_592_000),
    (4, 86_400, "Past year", 31_536_000),
)
_AVERAGES: Final = ("gpu.utilization.average", "gpu.mem.used.average")
_SPANS: Final = {REALTIME_S: timedelta(hours=1)} | {
    period: timedelta(seconds=length) for _, period, _, length in _INTERVALS
}
"""How far back the samples of each interval go."""


class PerformanceManager(ManagedObject):
    """Statistics of hosts and VMs: the values of the world's `counters` at the moment of each sample."""

    wsdl_name = "PerformanceManager"
    world: World

    property_table: ClassVar[Properties] = {
        "historicalInterval": lambda self: [
            vim.HistoricalInterval(key=key, samplingPeriod=period, name=name, length=length, level=LEVEL, enabled=True)
            for key, period, name, length in _INTERVALS
        ]
    }

    method_table: ClassVar[Methods] = {
        "QueryPerf": lambda self, call, querySpec: [
            metric for spec in querySpec if (metric := self._entity_metric(spec)) is not None
        ]
    }

    @prop("perfCounter")
    def _perf_counter(self) -> list[Any]:
        missing_names = (
            _AVERAGES if "gpu-counter-names" in self.world.deviations else ()
        )  # assumption: gpu-counter-names
        return [_counter_info(counter) for counter in COUNTERS if counter.full_name not in missing_names]

    @prop("description")
    def _description(self) -> Any:
        rollups = sorted({counter.rollup for counter in COUNTERS})
        stats = sorted({counter.stats for counter in COUNTERS})
        return vim.PerformanceDescription(
            counterType=[described(key) for key in rollups], statsType=[described(key) for key in stats]
        )

    @method
    def QueryPerfProviderSummary(self, call: Call, entity: Any) -> Any:
        managed_object = self._measured_entity(entity)
        has_realtime = is_kind_of(managed_object.wsdl_name, "HostSystem") or is_kind_of(
            managed_object.wsdl_name, "VirtualMachine"
        )
        return vim.PerformanceManager.ProviderSummary(
            entity=managed_object.ref,
            currentSupported=has_realtime,
            summarySupported=True,
            refreshRate=REALTIME_S if has_realtime else None,
        )

    @method
    def QueryAvailablePerfMetric(
        self, call: Call, entity: Any, beginTime: Any = None, endTime: Any = None, intervalId: int | None = None
    ) -> list[Any]:
        _require_known_interval(intervalId, "intervalId")
        values = self._values(self._measured_entity(entity), self.world.clock.now(), intervalId)
        return [_metric(BY_NAME[name].key, instance) for name, instance in sorted(values)]

    @method
    def QueryPerfCounter(self, call: Call, counterId: list[int]) -> list[Any]:
        unknown = next((key for key in counterId if key not in BY_KEY), None)
        if unknown is not None:
            raise faults.wrong_argument("counterId", f"There is no counter {unknown}")
        return [_counter_info(BY_KEY[key]) for key in counterId]

    @method
    def QueryPerfCounterByLevel(self, call: Call, level: int) -> list[Any]:
        """Raises InvalidArgument unless it is one of the levels 1 to 4 (vSphere API, PerfCounterInfo.level)."""
        if not 1 <= level <= 4:
            raise faults.wrong_argument("level", f"There is no statistics level {level}; the levels are 1 to 4.")
        return [_counter_info(counter) for counter in COUNTERS if counter.level <= level]

    # --- samples --------------------------------------------------------------------------------------------------

    def _entity_metric(self, spec: Any) -> Any:
        managed_object = self._measured_entity(spec.entity)
        interval_s = spec.intervalId or REALTIME_S
        _require_known_interval(interval_s, "querySpec.interval")
        moments = self._moments(spec, interval_s)
        samples = [self._values(managed_object, moment, interval_s) for moment in moments]
        series_keys = _requested_series(spec.metricId, samples)
        if not moments or not series_keys:
            return None
        series = {key: [sample.get(key, -1) for sample in samples] for key in series_keys}
        return (_csv_metric if spec.format == "csv" else _normal_metric)(managed_object, moments, interval_s, series)

    def _moments(self, spec: Any, interval_s: int) -> list[datetime]:
        """Return the times of the requested samples, oldest first; all are multiples of the interval.

        `maxSample` only limits real-time samples (vSphere API reference, PerfQuerySpec).
        """
        now = self.world.clock.now()
        end = min(spec.endTime or now, now)
        last = int(end.timestamp()) // interval_s * interval_s
        earliest = now - _SPANS[interval_s]
        start = max(spec.startTime or earliest, earliest)
        max_count = spec.maxSample if interval_s == REALTIME_S else None
        moments: list[datetime] = []
        while max_count is None or len(moments) < max_count:
            moment = datetime.fromtimestamp(last - len(moments) * interval_s, UTC)
            if moment <= start:
                break
            moments.append(moment)
        return moments[::-1]

    def _values(self, managed_object: ManagedObject, moment: datetime, interval_s: int | None) -> Values:
        """Return an entity's counters at a moment: all for real time, else those that the database keeps."""
        values = self.world.counters(managed_object, moment)
        if interval_s is None or interval_s == REALTIME_S:
            return values
        return {
            (name, instance): value
            for (name, instance), value in values.items()
            if BY_NAME[name].kept_from(instance) <= LEVEL
        }

    def _measured_entity(self, entity: Any) -> ManagedObject:
        managed_object: ManagedObject = self.world.get(entity)
        if not is_kind_of(managed_object.wsdl_name, "ManagedEntity"):
            raise faults.wrong_argument("entity", "Only objects of the inventory have statistics.")
        return managed_object


def _require_known_interval(interval_s: int | None, argument: str) -> None:
    if interval_s is not None and interval_s not in _SPANS:
        raise faults.wrong_argument(argument, f"A specified parameter was not correct: {argument}")


def _requested_series(metrics: list[Any], samples: list[Values]) -> list[tuple[str, str]]:
    """Return the requested (counter, instance) pairs in order; instance `*` means all, no metrics means all pairs."""
    existing = sorted({key for sample in samples for key in sample})
    if not metrics:
        return existing
    series: dict[tuple[str, str], None] = {}
    for metric in metrics:
        counter = BY_KEY.get(metric.counterId)
        if counter is None:
            raise faults.wrong_argument("querySpec.metricId", f"There is no counter {metric.counterId}")
        for name, instance in existing:
            if name == counter.full_name and metric.instance in ("*", instance):
                series[name, instance] = None
    return list(series)


def _normal_metric(
    managed_object: ManagedObject, moments: list[datetime], interval_s: int, series: dict[tuple[str, str], list[int]]
) -> Any:
    return vim.PerformanceManager.EntityMetric(
        entity=managed_object.ref,
        sampleInfo=[vim.PerformanceManager.SampleInfo(timestamp=moment, interval=interval_s) for moment in moments],
        value=[
            vim.PerformanceManager.IntSeries(id=_metric(BY_NAME[name].key, instance), value=values)
            for (name, instance), values in series.items()
        ],
    )


def _csv_metric(
    managed_object: ManagedObject, moments: list[datetime], interval_s: int, series: dict[tuple[str, str], list[int]]
) -> Any:
    """Return the samples as texts of comma-separated values."""
    return vim.PerformanceManager.EntityMetricCSV(
        entity=managed_object.ref,
        sampleInfoCSV=",".join(f"{interval_s},{moment:%Y-%m-%dT%H:%M:%SZ}" for moment in moments),
        value=[
            vim.PerformanceManager.MetricSeriesCSV(
                id=_metric(BY_NAME[name].key, instance), value=",".join(map(str, values))
            )
            for (name, instance), values in series.items()
        ],
    )


def _metric(key: int, instance: str) -> Any:
    return vim.PerformanceManager.MetricId(counterId=key, instance=instance)


def _counter_info(counter: Counter) -> Any:
    return vim.PerformanceManager.CounterInfo(
        key=counter.key,
        nameInfo=described(counter.name, counter.label),
        groupInfo=described(counter.group, counter.group),
        unitInfo=described(counter.unit, LABELS[counter.unit]),
        rollupType=counter.rollup,
        statsType=counter.stats,
        level=counter.level,
        perDeviceLevel=counter.device_level,
    )
