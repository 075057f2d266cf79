"""`gpuops schema`: schemas that say the same of a file as the code that reads it."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from jsonschema import Draft202012Validator, FormatChecker
from typer.testing import Result

from gpuops.cli.first_steps.schema import INPUTS, input_schema
from gpuops.config.layout_file import parse_layouts
from gpuops.config.policy import parse_policy
from gpuops.config.requests_file import parse_requests, parse_workloads
from gpuops.config.role_file import load_roles
from gpuops.config.vcenter.sources import read_configuration
from gpuops.errors import GpuopsError
from gpuops.extensions import load
from gpuops.files.yaml_file import parse_yaml
from gpuops.report.document_schema import document_kinds
from gpuops.sim.scenario.scenario_file import parse as parse_scenario

Gpuops = Callable[..., Result]
ROOT = Path(__file__).resolve().parents[3]
SCENARIOS = ROOT / "gpuops" / "sim" / "scenarios"
REMOTE_GPU = (ROOT / "templates" / "remote-gpu" / "lupine.yaml").read_text(encoding="utf-8")


def _files() -> Iterator[tuple[str, Path]]:
    """Every template, scenario and example, with the schema that it is of."""
    yield "policy", ROOT / "templates" / "policy.yaml"
    yield from (("policy", path) for path in sorted(SCENARIOS.glob("*-policy.yaml")))
    yield "requests", ROOT / "templates" / "requests.yaml"
    yield "jobs", ROOT / "templates" / "jobs.yaml"
    yield "mig-layout", ROOT / "templates" / "mig-layout.yaml"
    yield "pool", ROOT / "templates" / "pool.yaml"
    yield "site", ROOT / "templates" / "site.yaml"
    yield "workloads", ROOT / "templates" / "workloads.yaml"
    yield "config", ROOT / "templates" / "site.toml"
    yield from (("remote-gpu", path) for path in sorted((ROOT / "templates" / "remote-gpu").glob("*.yaml")))
    yield from (("role-file", path) for path in sorted((ROOT / "templates" / "roles").glob("*.yaml")))
    yield from (("scenario", path) for path in sorted(SCENARIOS.glob("*.yaml")) if not path.stem.endswith("-policy"))
    yield from (("scenario", path) for path in sorted((ROOT / "tests" / "peers" / "scenarios").glob("*.yaml")))


def _read(name: str, text: str) -> Any:
    return tomllib.loads(text) if name == "config" else parse_yaml(text, name, merges=name == "scenario")


def _refused_by_schema(name: str, content: Any) -> bool:
    return not Draft202012Validator(input_schema(name), format_checker=FormatChecker()).is_valid(content)


def _refused_by_reader(name: str, text: str, path: Path) -> bool:
    path.write_text(text, encoding="utf-8")
    readers: dict[str, Callable[[], object]] = {
        "config": lambda: read_configuration(path),
        "jobs": lambda: load("gpuops.extras.jobs.jobs_file.parse_jobs")(text, "jobs"),
        "mig-layout": lambda: parse_layouts(text, "mig-layout"),
        "policy": lambda: parse_policy(text, "policy"),
        "remote-gpu": lambda: load("gpuops.extras.lending.pool_file.parse_remote_gpu")(text, "remote-gpu"),
        "requests": lambda: parse_requests(text, "requests"),
        "role-file": lambda: load_roles(path),
        "scenario": lambda: parse_scenario(text, "scenario"),
        "workloads": lambda: parse_workloads(text, "workloads"),
    }
    try:
        readers[name]()
    except GpuopsError:
        return True
    return False


@pytest.mark.parametrize(
    ("name", "path"), [*_files()], ids=lambda value: value.stem if isinstance(value, Path) else value
)
def test_every_file_that_comes_with_gpuops_is_as_its_schema_says(name: str, path: Path) -> None:
    content = _read(name, path.read_text(encoding="utf-8"))
    validator = Draft202012Validator(input_schema(name), format_checker=FormatChecker())
    assert [f"{error.json_path}: {error.message}" for error in validator.iter_errors(content)] == []


POLICY = """
version: 1
name: night
pools:
  - name: desks
    parked: true
    owner: none
    select: {folder: /dc/vm/desks}
    idle: {cpu_below_mhz: 200}
ml:
  queue:
    - {vm: ml-01, deadline: "06:00", minimum_run_minutes: 30}
windows:
  - {opens: "20:00", closes: "05:00", zone: Europe/Berlin, weekdays: [mon], not_on: ["2026-12-24"]}
"""
AT_ANY_TIME = POLICY.partition("windows:")[0].replace("06:00", "2026-11-24T06:00+01:00") + "windows: any\n"
REQUESTS = """
version: 1
requests:
  - {name: a, vcpu: 4, memory: 16 GiB, profiles: [a40-8q, {profile: a40-8q, count: 2}], tag: "x:y; x:z"}
"""
CONFIG = '[targets.prod]\nhost = "vc.example.com"\nport = 443\n'
ROLES = "version: 1\nroles:\n  - {name: night, where: the datacenter, privileges: [VirtualMachine.Interact.PowerOn]}\n"
WORKLOADS = """
version: 1
workloads: [{name: a, busy: 0.7, count: 4}, {name: b, busy: 1}]
pairs: [{between: [a, b], speeds: [0.5, 1.01]}]
"""
JOBS = """
version: 1
jobs: [{name: a, image: quay.io/lab/a, command: [a], profile: a40-8q, vcpu: 4, memory: 8GiB, run_time: 3h, busy: 0.5}]
"""
LAYOUT = """
version: v1
mig-configs:
  a: [{devices: all, device-filter: "0x233110DE", mig-enabled: true, mig-devices: {"1g.10gb": 7}}]
"""
SCENARIO = (SCENARIOS / "lab.yaml").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("name", "text", "original_text", "instead", "refused"),
    [
        pytest.param("policy", POLICY, "name: night", "name: night", False, id="policy"),
        pytest.param("policy", POLICY, "parked: true", "parkd: true", True, id="policy, a misspelt key"),
        pytest.param("policy", POLICY, "parked: true", 'parked: "true"', True, id="policy, text for true"),
        pytest.param("policy", POLICY, "    owner: none\n", "", True, id="policy, no owner"),
        pytest.param("policy", POLICY, "owner: none", "owner: nobody", True, id="policy, an owner that is no mark"),
        pytest.param("policy", POLICY, "owner: none", "owner: {attribute: gpuops.owner}", False, id="policy, a mark"),
        pytest.param("policy", POLICY, '"20:00"', '"8 pm"', True, id="policy, no time of day"),
        pytest.param("policy", POLICY, "[mon]", "[moonday]", True, id="policy, no weekday"),
        pytest.param("policy", AT_ANY_TIME, "any", "any", False, id="policy, at any time"),
        pytest.param("policy", AT_ANY_TIME, "any", "always", True, id="policy, another word for any time"),
        pytest.param("policy", AT_ANY_TIME, "any", "[]", True, id="policy, no windows"),
        pytest.param("policy", POLICY, "200", "0", True, id="policy, too small a number"),
        pytest.param("policy", POLICY, "version: 1", "version: 2", True, id="policy, another version"),
        pytest.param("policy", POLICY, "ml:\n", "more: 1\nml:\n", True, id="policy, a key too many"),
        pytest.param("requests", REQUESTS, "vcpu: 4", "vcpu: 4", False, id="requests"),
        pytest.param("requests", REQUESTS, "vcpu: 4", "vcpus: 4", True, id="requests, a misspelt key"),
        pytest.param("requests", REQUESTS, "count: 2", "cout: 2", True, id="requests, a misspelt key below"),
        pytest.param("requests", REQUESTS, "vcpu: 4", "vcpu: 0", True, id="requests, too small a number"),
        pytest.param("workloads", WORKLOADS, "busy: 0.7", "busy: 0.7", False, id="workloads"),
        pytest.param("workloads", WORKLOADS, "busy: 0.7", "busy: [70]", True, id="workloads, no share"),
        pytest.param("workloads", WORKLOADS, "busy: 0.7", "bussy: 0.7", True, id="workloads, a misspelt key"),
        pytest.param("workloads", WORKLOADS, "count: 4", "count: 0", True, id="workloads, too small a number"),
        pytest.param("workloads", WORKLOADS, "[a, b]", "[a]", True, id="workloads, a pair of one"),
        pytest.param("jobs", JOBS, "name: a", "name: a", False, id="jobs"),
        pytest.param("jobs", JOBS, "command: [a]", "command: a", True, id="jobs, a command in one text"),
        pytest.param("jobs", JOBS, "vcpu: 4", "vcpu: 0", True, id="jobs, too small a number"),
        pytest.param("jobs", JOBS, "run_time: 3h", "runtime: 3h", True, id="jobs, another key"),
        pytest.param("mig-layout", LAYOUT, "all", "[0, 1]", False, id="layout"),
        pytest.param("mig-layout", LAYOUT, "all", "some", True, id="layout, another word for all"),
        pytest.param("mig-layout", LAYOUT, "version: v1", "version: 1", True, id="layout, another version"),
        pytest.param("mig-layout", LAYOUT, "mig-enabled: true, ", "", True, id="layout, a key is missing"),
        pytest.param("mig-layout", LAYOUT, "devices: all", "device: all", True, id="layout, a misspelt key"),
        pytest.param("mig-layout", LAYOUT, "7}", "'7'}", True, id="layout, text for a number"),
        pytest.param("config", CONFIG, "443", "443", False, id="config"),
        pytest.param("config", CONFIG, "443", '443\npassword = "x"', True, id="config, a password"),
        pytest.param("config", CONFIG, "443", "70000", True, id="config, no port"),
        pytest.param("remote-gpu", REMOTE_GPU, "count: 64", "count: 65", False, id="remote GPU"),
        pytest.param("remote-gpu", REMOTE_GPU, "first: 14833", "first: 22", True, id="remote GPU, a low port"),
        pytest.param("remote-gpu", REMOTE_GPU, "\nhealth: |", "\nhealthy: |", True, id="remote GPU, a misspelt key"),
        pytest.param("role-file", ROLES, "night", "night", False, id="roles"),
        pytest.param("role-file", ROLES, "where:", "on:", True, id="roles, another key"),
        pytest.param("role-file", ROLES, "VirtualMachine.Interact.PowerOn", "all", True, id="roles, no privilege"),
        pytest.param("scenario", SCENARIO, "datacenter: lab-dc", "datacenter: lab-dc", False, id="scenario"),
        pytest.param("scenario", SCENARIO, "datacenter: lab-dc", "datacentre: lab-dc", True, id="scenario, a key"),
    ],
)
def test_schema_and_reader_say_the_same(
    name: str, text: str, original_text: str, instead: str, refused: bool, tmp_path: Path
) -> None:
    assert original_text in text
    changed = text.replace(original_text, instead, 1)
    assert _refused_by_reader(name, changed, tmp_path / name) is refused
    assert _refused_by_schema(name, _read(name, changed)) is refused


@pytest.mark.parametrize("name", INPUTS)
def test_the_schema_of_a_file_is_one_of_json_schema(name: str) -> None:
    schema = input_schema(name)
    Draft202012Validator.check_schema(schema)
    assert schema["$id"] == f"urn:gpuops:schema:{name}:1"
    assert (schema["title"], schema["additionalProperties"]) == (INPUTS[name].title, False)
    assert "required" in schema


def test_every_schema_is_listed_and_printed(gpuops: Gpuops) -> None:
    listed = json.loads(gpuops("--output", "json", "schema").stdout)["schemas"]
    assert {schema["name"]: schema["of"] for schema in listed} == {
        **dict.fromkeys(INPUTS, "input"),
        **dict.fromkeys(document_kinds(), "output"),
    }
    assert len(gpuops("schema").stdout.splitlines()) == len(listed) + 1
    for name in ("attach", "policy"):
        printed = gpuops("schema", name)
        assert (printed.exit_code, json.loads(printed.stdout)["$id"]) == (0, f"urn:gpuops:schema:{name}:1")
        assert yaml.safe_load(gpuops("--output", "yaml", "schema", name).stdout) == json.loads(printed.stdout)
