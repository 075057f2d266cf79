"""Bundles that gpuops did not write: each is played, or refused in one line."""

from __future__ import annotations

import io
import json
import random
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from gpuops.catalog import load
from gpuops.config.snapshot import load as load_snapshot
from gpuops.errors import GpuopsError
from gpuops.extras.bundle.bundle_scenario import world
from gpuops.extras.bundle.harmless import Pseudonyms
from gpuops.sim.scenario.build import build
from tests.sample import mostly_long

pytestmark = pytest.mark.long

WEIRD: Final[tuple[Any, ...]] = (
    None, True, -1, 0, 1 << 70, 1.5, "", "x", "vm-1", "ServiceInstance", "group-d1", "{", "{0.__class__}", "\0", [], {},
    [[]], {"a": {}}, "0000:00:00.0", "0000:ff:1f.7", "9.9.9.9", "9.0.0.0", "nvidia_a40-8q", "a100",
    "2026-11-02T18:00:00Z", "0001-01-01T00:00:00Z", "}", 10**12, 10**18, 20_000_000, ["vm-1"], [None], [-1],
)  # fmt: skip
NODE: Final = {"id": 0, "logical_cpus": 1, "memory_mib": 1}


def pack_scenario(scenario: Any, path: Path) -> Path:
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w") as archive:
        archive.writestr("manifest.json", json.dumps({"kind": "gpuops-bundle"}))
        archive.writestr("scenario.json", json.dumps(scenario))
    path.write_bytes(content.getvalue())
    return path


@pytest.fixture(scope="module")
def scenarios(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, ...]:
    """Those of bundles of `lab`, of other devices and of reservations, as JSON."""
    from typer.testing import CliRunner

    from gpuops.cli.app import app

    documents = []
    for name in ("lab", "accelerators", "supervisor"):
        saved = tmp_path_factory.mktemp(name) / f"{name}.json"
        result = CliRunner().invoke(app, ["inventory", "--vcenter", f"sim:{name}", "--save", str(saved)])
        assert result.exit_code == 0, result.output
        documents.append(json.dumps(world(load_snapshot(saved), load(everything=True), Pseudonyms(b"k"))))
    return tuple(documents)


@pytest.fixture(scope="module")
def scenario(scenarios: tuple[str, ...]) -> str:
    """That of `lab`."""
    return scenarios[0]


def places(value: Any) -> Iterator[tuple[Any, Any]]:
    """Every place of a document: a container and a key of it."""
    pairs = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, child in list(pairs):
        yield value, key
        yield from places(child)


def test_it_is_played_as_it_is(scenario: str, tmp_path: Path) -> None:
    assert (
        len(list(build(str(pack_scenario(json.loads(scenario), tmp_path / "b.zip"))).by_type("VirtualMachine"))) == 28
    )


@pytest.mark.drawn_cases(10)
@pytest.mark.parametrize("seed", mostly_long(range(2000), range(60)))
def test_a_bundle_with_anything_in_it(seed: int, scenarios: tuple[str, ...], tmp_path: Path) -> None:
    """A value replaced, a key renamed, an entry doubled or left out: no error but ours, and no world without end."""
    chance = random.Random(seed)
    document = json.loads(chance.choice(scenarios))
    for _ in range(chance.randint(1, 3)):
        container, key = chance.choice(list(places(document)))
        match chance.randint(0, 3):
            case 0 | 1:
                container[key] = chance.choice(WEIRD)
            case 2 if isinstance(container, dict):
                container[f"{key}x"] = container.pop(key)
            case _ if isinstance(container, list):
                container.append(container[key])
            case _:
                del container[key]
    path = pack_scenario(document, tmp_path / "b.zip")
    try:
        played = build(str(path))
    except GpuopsError as refused:
        assert refused.exit_code == 2
        assert "\n" not in refused.message
        assert len(refused.message) < 1000
    else:
        assert list(played.by_type("HostSystem"))


@pytest.mark.parametrize(
    ("path", "value", "message_end"),
    [
        (("vms", 0, "count"), 10**9, "a host or VM has a `count` other than 1"),
        (("clusters", 0, "hosts", 0, "count"), 7, "a host or VM has a `count` other than 1"),
        (("vms", 0, "as_read"), None, "a host or VM has no `as_read`, which a bundle always has"),
        (
            ("vms", 0, "name"),
            "{:01000000000}",
            "vms.0.name: '{:01000000000}' may use braces only as {} or {:03}",
        ),
        (("vms", 0, "name"), "\ud800", "it holds half of a surrogate pair, which is no character"),
        (("vms", 0, "name"), "ml-{:02}", "a name has braces"),
        (("clusters", 0, "name"), "{}", "a name has braces"),
        (
            ("vms", 0, "as_read", "moid"),
            "ServiceInstance",
            "'ServiceInstance' does not have the form of the id of a VM",
        ),
        (("vms", 0, "as_read", "moid"), "host-2", "'host-2' does not have the form of the id of a VM"),
        (("vms", 0, "as_read", "moid"), "vm-2\n", "'vm-2\\n' does not have the form of the id of a VM"),
        (("clusters", 0, "hosts", 0, "as_read", "moid"), "vm-2", "'vm-2' does not have the form of the id of a host"),
        (("clusters", 0, "as_read", "moid"), "group-d1", "'group-d1' does not have the form of the id of a cluster"),
        (("datastores", 0, "moid"), "vm-2", "'vm-2' does not have the form of the id of a datastore"),
        (("datastores",), [], "there is no datastore"),
        (("networks",), [], "there is no network"),
        (("start",), "0001-01-01T00:00:00Z", "it starts before 2000"),
        (("start",), "1999-12-31T00:00:00Z", "it starts before 2000"),
        (("start",), "9999-12-31T00:00:00Z", "start must be a time with a time zone, from 1970 to 2199"),
        (("start",), "2026-11-27T09:00:00", "start must be a time with a time zone, from 1970 to 2199"),
        (
            ("vms", 0, "as_read", "booted"),
            "0001-01-01T00:00:00Z",
            "vms.0.as_read.booted must be a time with a time zone, from 1970 to 2199",
        ),
        (
            ("models", "server-1", "numa_nodes"),
            20_000_000,
            "models.server-1.numa_nodes is 20000000; it must be from 0 to 64",
        ),
        (("models", "server-1", "sockets"), 65, "models.server-1.sockets is 65; it must be from 0 to 64"),
        (("models", "server-1", "cores_per_socket"), 4096, "a server model has more than 4096 logical CPUs"),
        (("models", "server-1", "nodes"), [NODE] * 65, "a server model has more than 64 NUMA nodes"),
        (
            ("models", "server-1", "nodes"),
            [{**NODE, "logical_cpus": 10**18}],
            f"models.server-1.nodes.0.logical_cpus is {10**18}; it must be from 0 to 4096",
        ),
        (("vms", 0, "cpus"), 4097, "vms.0.cpus is 4097; it must be from 0 to 4096"),
        (("vms", 0, "memory_mib"), 10**18, f"vms.0.memory_mib is {10**18}; it must be from 0 to {1 << 40}"),
        (("vms", 0, "memory_mib"), -1, f"vms.0.memory_mib is -1; it must be from 0 to {1 << 40}"),
        (("vms", 0, "disk_gib"), 1 << 40, f"vms.0.disk_gib is {1 << 40}; it must be from 0 to {1 << 30}"),
        (
            ("datastores", 0, "free_gib"),
            -7,
            f"datastores.0.free_gib is -7; it must be from 0 to {1 << 30}",
        ),
        (
            ("vms", 0, "as_read", "cpu_reservation_mhz"),
            -1,
            f"vms.0.as_read.cpu_reservation_mhz is -1; it must be from 0 to {1 << 40}",
        ),
        (("clusters", 0, "size"), -1, f"clusters.0.size is -1; it must be from 0 to {1 << 40}"),
        (("desktop_pools",), [{"name": "x", "vms": ["*"]}], "it declares desktop pools"),
        (("vms", 0, "as_read", "datastore"), "datastore-7", "there is no datastore 'datastore-7'"),
    ],
)
def test_what_no_bundle_has(path: tuple[Any, ...], value: Any, message_end: str, scenario: str, tmp_path: Path) -> None:
    document = json.loads(scenario)
    place = document
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = value
    with pytest.raises(GpuopsError) as refused:
        build(str(pack_scenario(document, tmp_path / "b.zip")))
    assert refused.value.message.endswith(message_end)
