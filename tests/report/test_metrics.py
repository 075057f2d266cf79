"""The families of `gpuops metrics` by themselves: conventions, what is absent, names; its alert rules and dashboard."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

import gpuops
from gpuops.api import catalog_of
from gpuops.extras.web.metrics_view import FAMILIES, UP, Family, MetricsWriter, MetricValues
from gpuops.model.devices.gpu import GpuHealth
from gpuops.model.measurements.measurement import GPU_MEMORY, GPU_USE, NewestUse
from gpuops.model.nights.history import Incident, PastEvents
from gpuops.model.vcenter.inventory import Inventory
from gpuops.plan.capacity.capacity_request import capacity
from gpuops.plan.rotation.night_status import NightStanding
from tests.plan.snapshots import SNAPSHOTS
from tests.prometheus import needs_promtool, only, promtool, require_taken, samples

TEMPLATES: Final = Path(__file__).parents[2] / "templates"
ALERTS: Final = TEMPLATES / "metrics" / "alerts.yaml"
DASHBOARD: Final = TEMPLATES / "metrics" / "dashboard.json"
NOW: Final = datetime(2026, 11, 20, 20, tzinfo=UTC)
NAMED: Final = {family.name: family for family in FAMILIES}
BASE_UNITS: Final = ("_seconds", "_bytes", "_ratio")
OF_QUERIES: Final = re.compile(r"\bgpuops_[a-z_]+")
"""Metrics in a query."""


def values(world: Inventory, **sources: Any) -> MetricValues:
    catalog = catalog_of(world)
    holding = [vm for vm in world.vms.values() if vm.may_run and vm.profiles]
    return MetricValues(world, catalog, capacity(world, catalog, desktops=holding), NOW, **sources)


def text_of(world: Inventory, **sources: Any) -> str:
    return MetricsWriter("prod").text(values(world, **sources)).decode()


def test_problems_of_gpus_are_counted_where_they_are_known(inventory: Inventory) -> None:
    assert "gpuops_gpu_problem" not in "\n".join(line for line in text_of(inventory).splitlines() if line[:1] != "#")
    [host, *_] = [host for host in inventory.hosts.values() if len(host.gpus) > 1]
    first, second, *_ = host.gpus
    gpus = (replace(first, health=GpuHealth(is_lost=True)), replace(second, health=GpuHealth()))
    lines = text_of(inventory.with_hosts([replace(host, gpus=gpus)])).splitlines()
    labels = [f'gpu="{gpu.address}",host="{host.name}"' for gpu in gpus]
    assert [line for line in lines if line.startswith("gpuops_gpu_problem")] == [
        f'gpuops_gpu_problems{{{labels[0]},vcenter="prod"}} 1.0',
        f'gpuops_gpu_problems{{{labels[1]},vcenter="prod"}} 0.0',
        f'gpuops_gpu_problem_info{{{labels[0]},problem="lost",vcenter="prod"}} 1.0',
    ]


def test_names_are_as_prometheus_wants_them() -> None:
    assert len(NAMED) == len(FAMILIES)
    for name, family in NAMED.items():
        assert OF_QUERIES.fullmatch(name), name
        assert name.endswith("_total") is family.is_counter, name
        assert family.description and "\n" not in family.description and "vcenter" not in family.labels
        if name.endswith("_info"):
            assert family.labels
        if "timestamp" in name:
            assert name.endswith("_timestamp_seconds")
        if any(word in name for word in ("memory", "utilization", "timestamp")):
            assert name.endswith(BASE_UNITS), name


def test_the_manual_names_each_with_its_labels() -> None:
    page = (Path(gpuops.__file__).parent / "manual" / "metrics.md").read_text(encoding="utf-8")
    labels_by_name: dict[str, set[str]] = {}
    last: set[str] = set()
    for name, labels in re.findall(r"^\| `(gpuops_\w+)` \|([^|]*)\|", page, re.MULTILINE):
        last = last if "the same" in labels else set(re.findall(r"`(\w+)`", labels))
        labels_by_name[name] = last
    assert labels_by_name == {name: set(family.labels) for name, family in NAMED.items()}


@needs_promtool
@pytest.mark.parametrize("name", SNAPSHOTS)
def test_promtool_takes_what_is_told_of_each_snapshot(name: str) -> None:
    incident = Incident(NOW, "vdi-01", "suspend failed")
    night = NightStanding(3, NOW + timedelta(hours=10))
    text = text_of(SNAPSHOTS[name](), history=PastEvents("journal"), night=night, sources={"journal": True})
    require_taken(text)
    by_name = samples(text)
    assert set(by_name) <= set(NAMED)
    assert only(by_name, "gpuops_return_deadline_timestamp_seconds") == (NOW + timedelta(hours=10)).timestamp()
    assert only(by_name, "gpuops_suspended_desktops") == 3
    assert only(by_name, "gpuops_incidents_total", of="night") == 0, "the journal is there, and knows of none"
    assert incident.what and "gpuops_last_rotation_outcome" not in by_name


def test_a_vcenter_that_could_not_be_read_tells_nothing_else() -> None:
    by_name = samples(MetricsWriter("prod").text(None).decode())
    assert (only(by_name, "gpuops_up"), set(by_name)) == (0, {"gpuops_up", "gpuops_build_info"})


def test_what_the_host_does_not_tell_is_absent_and_not_zero() -> None:
    world = SNAPSHOTS["lab"]()
    host = next(esx for esx in world.hosts.values() if any(gpu.vms for gpu in esx.gpus))
    all_samples = samples(text_of(world))
    blind = replace(host, gpus=tuple(replace(gpu, vms=None, memory_mib=None) for gpu in host.gpus), bindings=())
    without_host_facts = samples(text_of(world.with_hosts([blind])))

    def of(name: str, by_name: dict[str, dict[frozenset[tuple[str, str]], float]]) -> list[float]:
        return [value for labels, value in by_name.get(name, {}).items() if ("host", host.name) in labels]

    for name in ("gpuops_vgpu_slots_free", "gpuops_gpu_vgpu_info", "gpuops_gpu_memory_size_bytes"):
        assert of(name, all_samples) and len(of(name, without_host_facts)) < len(of(name, all_samples)), name
    assert 0 not in of("gpuops_gpu_memory_size_bytes", without_host_facts)
    assert len(of("gpuops_gpu_info", without_host_facts)) == len(host.gpus), "the GPUs are there"


def test_a_counter_is_of_the_gpu_that_it_names_or_absent() -> None:
    world = SNAPSHOTS["lab"]()
    host = next(esx for esx in world.hosts.values() if len(esx.gpus) > 1)
    address = str(host.gpus[0].address)
    counters = {f"{GPU_USE}@{address.upper()}": 5_000, f"{GPU_USE}@gpu-1": 1, f"{GPU_USE}@0000:ff:00.0": 2, GPU_USE: 3}

    def use_by_gpu(world: Inventory) -> dict[str, float]:
        used = NewestUse(NOW, {host.ref: counters | {f"{GPU_MEMORY}@{address}": 7}, "vm-gone": counters})
        ratios = samples(text_of(world, used=used)).get("gpuops_gpu_utilization_ratio", {})
        return {dict(labels)["gpu"]: value for labels, value in ratios.items()}

    assert use_by_gpu(world) == {address: 0.5}
    assert only(samples(text_of(world, used=NewestUse(NOW, {}))), "gpuops_measured_timestamp_seconds")
    alone = replace(host, gpus=host.gpus[:1])
    other_words = NewestUse(NOW, {host.ref: {f"{GPU_USE}@gpu-1": 1}})
    ratios = samples(text_of(world.with_hosts([alone]), used=other_words))["gpuops_gpu_utilization_ratio"]
    assert [dict(labels)["gpu"] for labels in ratios] == [address], "which other GPU could it be"


def test_two_samples_that_cannot_be_told_apart_are_absent() -> None:
    family = Family("gpuops_any", "Any.", ("host",))
    metric = family.metric("prod", [(("a",), 1.0), (("b",), 2.0), (("a",), 3.0), (("c",), 4.0), (("c",), 4.0)])
    assert metric is not None
    assert {sample.labels["host"]: sample.value for sample in metric.samples} == {"b": 2.0, "c": 4.0}
    assert family.metric("prod", [(("a",), 1.0), (("a",), 2.0)]) is None
    assert UP.metric("prod", []) is None


@given(st.text(st.characters(exclude_categories=["Cs"]), min_size=1))
def test_a_name_comes_back_as_it_was(name: str) -> None:
    parsed = samples(MetricsWriter(name).text(None).decode(), with_vcenter=True)
    assert parsed["gpuops_up"] == {frozenset({("vcenter", name)}): 0.0}


def test_the_fleet_is_written_once_for_a_snapshot() -> None:
    lab_values, writer = values(SNAPSHOTS["lab"]()), MetricsWriter("prod")
    first = writer.text(lab_values)
    assert writer.text(lab_values) == first
    later = replace(lab_values, night=NightStanding(1, None))
    assert b"gpuops_suspended_desktops" in writer.text(later) and b"gpuops_suspended_desktops" not in first
    driver_values = values(SNAPSHOTS["drivers"]())
    assert writer.text(driver_values) == MetricsWriter("prod").text(driver_values)


# What uses them


def queries(node: object) -> list[str]:
    """Every query in a dashboard or a file of rules."""
    if isinstance(node, dict):
        own_queries = [
            value for key, value in node.items() if key in ("expr", "query", "definition") and isinstance(value, str)
        ]
        return own_queries + [query for value in node.values() for query in queries(value)]
    return [query for child in node for query in queries(child)] if isinstance(node, list) else []


@pytest.mark.parametrize("path", [ALERTS, DASHBOARD], ids=["alerts", "dashboard"])
def test_queries_ask_for_what_is_told(path: Path) -> None:
    expressions = queries(yaml.safe_load(path.read_text(encoding="utf-8")))
    assert len(expressions) > 8
    labels = {label for family in FAMILIES for label in family.labels} | {"vcenter"}
    for query in expressions:
        assert set(OF_QUERIES.findall(query)) <= set(NAMED), query
        for grouped in re.findall(r"\b(?:by|on|group_left|group_right) \(([^)]*)\)", query):
            assert set(re.split(r",\s*", grouped)) <= labels, query
        for name, selected in re.findall(r"(gpuops_[a-z_]+)\{([^}]*)\}", query):
            assert set(re.findall(r"(\w+)=", selected)) <= {"vcenter", *NAMED[name].labels}, query


@needs_promtool
def test_promtool_takes_the_rules_and_they_fire_when_they_should() -> None:
    assert promtool("check", "rules", ALERTS)[0] == 0
    code, output = promtool("test", "rules", Path(__file__).with_name("alert_tests.yaml"))
    assert code == 0, output
    tested = {
        rule_test["alertname"]
        for test in yaml.safe_load(Path(__file__).with_name("alert_tests.yaml").read_text(encoding="utf-8"))["tests"]
        for rule_test in test["alert_rule_test"]
        if rule_test["exp_alerts"]
    }
    [group] = yaml.safe_load(ALERTS.read_text(encoding="utf-8"))["groups"]
    assert tested == {rule["alert"] for rule in group["rules"]}


@needs_promtool
def test_promtool_takes_each_query_of_the_dashboard(tmp_path: Path) -> None:
    """As the query of a rule, each variable with a value."""
    expressions = [query for query in queries(panels()) if "label_values" not in query]
    rules = [
        {"record": f"one:of:{number}", "expr": re.sub(r"\$\w+", ".*", query)}
        for number, query in enumerate(expressions)
    ]
    path = tmp_path / "rules.yaml"
    path.write_text(yaml.safe_dump({"groups": [{"name": "dashboard", "rules": rules}]}), encoding="utf-8")
    code, output = promtool("check", "rules", path)
    assert code == 0, output


def dashboard() -> dict[str, Any]:
    document: dict[str, Any] = json.loads(DASHBOARD.read_text(encoding="utf-8"))
    return document


def panels() -> list[dict[str, Any]]:
    dashboard_panels: list[dict[str, Any]] = dashboard()["panels"]
    return dashboard_panels


def test_the_dashboard_is_as_grafana_imports_it() -> None:
    """Grafana's documentation, "Dashboard JSON model" (classic): what it needs, by type; ids are unique, panels lie
    beside each other on 24 columns."""
    document = dashboard()
    assert document["id"] is None, "Grafana gives it"
    assert re.fullmatch(r"[a-zA-Z0-9_-]{1,40}", document["uid"]) and document["title"]
    types = {
        "tags": list, "editable": bool, "schemaVersion": int, "version": int, "time": dict, "timezone": str,
        "links": list, "templating": dict, "annotations": dict, "panels": list, "refresh": str, "graphTooltip": int,
    }  # fmt: skip
    assert {key: type(document[key]) for key in types} == types
    assert document["schemaVersion"] >= 36, "before, data sources were named and not meant by their uid"
    assert [*document["time"]] == ["from", "to"]
    ids = [panel["id"] for panel in document["panels"]]
    assert len(set(ids)) == len(ids) and all(isinstance(number, int) and number > 0 for number in ids)
    covered: set[tuple[int, int]] = set()
    for panel in document["panels"]:
        assert panel["type"] in {"stat", "timeseries", "table"} and panel["title"], "kinds that Grafana comes with"
        place = panel["gridPos"]
        assert place["x"] + place["w"] <= 24 and min(place.values()) >= 0
        cells = {(x, y) for x in range(place["x"], place["x"] + place["w"])
                 for y in range(place["y"], place["y"] + place["h"])}  # fmt: skip
        assert covered.isdisjoint(cells), panel["title"]
        covered |= cells
        refs = [target["refId"] for target in panel["targets"]]
        assert refs and len(set(refs)) == len(refs)
        for source in (panel, *panel["targets"]):
            assert source["datasource"] == {"type": "prometheus", "uid": "${datasource}"}
        assert {*panel["fieldConfig"]} == {"defaults", "overrides"}
        steps = panel["fieldConfig"]["defaults"]["thresholds"]["steps"]
        assert steps[0]["value"] is None, "the first colour is from below on"
        for mended in panel.get("transformations", ()):
            assert {*mended} == {"id", "options"}


def test_variables_that_are_used_are_there() -> None:
    document = dashboard()
    names = [variable["name"] for variable in document["templating"]["list"]]
    assert names[0] == "datasource" and len(set(names)) == len(names)
    used = set(re.findall(r"\$\{?(\w+)", json.dumps(document)))
    assert used == set(names)
    for dashboard_variable in document["templating"]["list"]:
        assert dashboard_variable["type"] in ("datasource", "query")
