"""Files of mig-parted and vgpu-device-manager for `gpuops diff`, `apply` and `assert`."""

from __future__ import annotations

import json
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Final, cast

import pytest

from gpuops.config.layout_file import find_layout, parse_layouts
from gpuops.execute.site import Site
from gpuops.extras.declare.applying import apply_site, plan_site
from gpuops.extras.declare.entries import entry_keys
from gpuops.extras.declare.layout_site import LayoutOptions, load_wishes, site_of_layout
from gpuops.hostshell.nvidia_smi import NvidiaSmi
from gpuops.sim.server import SimServer
from gpuops.vsphere.connection import Connection
from tests.cli.conftest import Lab, lab_on
from tests.declare.worlds import random_world
from tests.plan import snapshots
from tests.plan.snapshots import FIRST, SECOND
from tests.wire.conftest import target_of
from tests.wire.reading.test_gpu_health import SimulatedSsh

if TYPE_CHECKING:
    from gpuops.hostshell.ssh import Ssh

SECOND_OF_LAB: Final = "0000:af:00.0"
LAYOUTS: Final = """
version: v1
mig-configs:
  off: [{devices: all, mig-enabled: false}]
  on: [{devices: all, mig-enabled: true, mig-devices: {}}]
  first: [{devices: all, mig-enabled: false}, {devices: [0], mig-enabled: true, mig-devices: {"1g.5gb": 7}}]
  many: [{devices: all, device-filter: "0x20F110DE", mig-enabled: true, mig-devices: {"1g.5gb": 8}}]
  elsewhere: [{devices: all, device-filter: "0x233110DE", mig-enabled: true, mig-devices: {}}]
"""
VGPUS: Final = """
version: v1
vgpu-configs:
  mig: [{devices: [0], vgpu-devices: {A100-3-20C: 2}}]
  full: [{devices: [1], vgpu-devices: {A100-20C: 2}}]
  mixed: [{devices: all, vgpu-devices: {A40-8Q: 2, A40-4Q: 4}}]
  none: [{devices: [0], vgpu-devices: {}}]
"""


@pytest.fixture
def layouts(tmp_path: Path) -> str:
    path = tmp_path / "mig.yaml"
    path.write_text(LAYOUTS, encoding="utf-8")
    return str(path)


@pytest.fixture
def vgpus(tmp_path: Path) -> str:
    path = tmp_path / "vgpu.yaml"
    path.write_text(VGPUS, encoding="utf-8")
    return str(path)


@pytest.mark.parametrize(
    ("text", "name", "keys"),
    [
        (LAYOUTS, "off", {FIRST: {"mig": False}, SECOND: {"mig": False}}),
        (LAYOUTS, "first", {FIRST: {"mig": True}, SECOND: {"mig": False}}),
        (VGPUS, "mig", {FIRST: {"mig": True, "graphics": "sharedDirect"}}),
        (VGPUS, "full", {SECOND: {"mig": False, "graphics": "sharedDirect", "vgpu_mode": "sameSize"}}),
    ],
)
def test_a_layout_sets_the_mode_of_each_gpu(text: str, name: str, keys: dict[str, dict[str, object]]) -> None:
    layout = find_layout(name, parse_layouts(text, "file"), Path("file"))
    site = site_of_layout(layout, ("esx-01",), snapshots.lab(), snapshots.catalog())
    assert site.misfits == ()
    host = snapshots.lab().find_host("esx-01").ref
    assert [entry_keys(entry) for entry in site.hosts] == [
        {"host": host, "gpu": gpu, **settings} for gpu, settings in keys.items()
    ]


def test_hosts_that_are_alike_get_one_entry() -> None:
    layout = find_layout("off", parse_layouts(LAYOUTS, "file"), Path("file"))
    inventory = snapshots.lab()
    hosts = [host.ref for host in inventory.hosts.values() if host.gpus]
    twice = site_of_layout(layout, ("*", "esx-01*"), inventory, snapshots.catalog())
    assert twice == site_of_layout(layout, ("*",), inventory, snapshots.catalog())
    assert all(set(entry.host) <= set(hosts) for entry in twice.hosts)


def test_a_layout_is_compared_and_applied_as_a_site_file(lab: Lab, layouts: str, vgpus: str) -> None:
    chosen = ("--file", layouts, "--layout", "off", "--host", "esx-01*")
    diff = json.loads(lab.run("diff", *chosen, "--output", "json").stdout)
    assert [(each["gpu"], each["key"], each["after"]) for each in diff["differences"]] == [
        ("0000:3b:00.0", "mig", "off"),
        ("0000:af:00.0", "mig", "off"),
    ]
    assert lab.run("assert", *chosen).exit_code == 3
    assert lab.run("assert", "--file", layouts, "--layout", "off", "--host", "esx-02*").exit_code == 0
    first = ("--file", vgpus, "--layout", "mig", "--host", "esx-01*", "--mode-only")
    assert lab.run("apply", *first).stdout == "nothing differs from the file: nothing to do\n"
    assert lab.effects == []


def test_mig_mode_of_a_layout_is_set_by_the_host_shell(lab: Lab, layouts: str, tmp_path: Path) -> None:
    make = load_wishes(Path(layouts), LayoutOptions("first", ("esx-01*",), mode_only=True))
    with Connection(target_of(lab.server)) as connection:
        site = Site(connection, tmp_path / "state", lab.server.world.clock.now)
        site.shell = NvidiaSmi(cast("Ssh", SimulatedSsh(lab.server)))
        changed = apply_site(make(site), site, apply=True)
        assert [(str(each.gpu), each.key, each.after) for each in changed.differences] == [
            (SECOND_OF_LAB, "mig", "off")
        ]
        assert changed.exit_code == 0
        [left] = plan_site(make(site), site).differences
        assert (left.pending, left.before, left.after) == (True, "on", "off"), "the host was not rebooted"


def test_the_mode_for_vgpus_of_several_sizes_is_set_once(vgpus: str, tmp_path: Path, clean: Path) -> None:
    chosen = ("--file", vgpus, "--layout", "mixed", "--host", "*", "--mode-only")
    with SimServer(random_world(Random(2))) as server, lab_on(server, tmp_path, clean) as lab:
        assert "vgpu_mode: sameSize -> mixedSize" in lab.run("diff", *chosen).stdout
        assert lab.run("apply", *chosen).exit_code == 0
        assert lab.run("assert", *chosen).exit_code == 0
        effects = lab.effects
        assert lab.run("apply", *chosen).stdout == "nothing differs from the file: nothing to do\n"
        assert lab.effects == effects != []


@pytest.mark.parametrize(
    ("options", "exit_code", "reason"),
    [
        ((), 2, "has 5 layouts: off, on, first"),
        (("--layout", "off"), 2, "add --host NAME"),
        (("--layout", "of", "--host", "*"), 2, "did you mean off"),
        (("--layout", "first", "--host", "*"), 2, "add --mode-only"),
        (("--layout", "on", "--host", "esx-01*"), 3, "0000:d8:00.0: NVIDIA A40 has no MIG mode"),
        (("--layout", "many", "--host", "*", "--mode-only"), 3, "no place for a 1g.5gb next to 7 x 1g.5gb"),
        (("--layout", "elsewhere", "--host", "*"), 3, "have no GPU for which layout 'elsewhere' is made"),
        (("--layout", "off", "--host", "esx-9"), 3, "named esx-9"),
    ],
)
def test_what_has_no_counterpart_is_refused(
    lab: Lab, layouts: str, options: tuple[str, ...], exit_code: int, reason: str
) -> None:
    refused = lab.run("apply", "--file", layouts, *options)
    assert (refused.exit_code, lab.effects) == (exit_code, [])
    assert reason in refused.stdout + refused.stderr


def test_a_layout_of_vgpus_that_names_none_is_refused(lab: Lab, vgpus: str) -> None:
    refused = lab.run("diff", "--file", vgpus, "--layout", "none", "--host", "esx-01*")
    assert (refused.exit_code, "has no vGPUs for this GPU" in refused.stdout) == (3, True)


def test_a_file_of_layouts_is_not_read_from_a_directory(lab: Lab, layouts: str) -> None:
    refused = lab.run("diff", "--file", str(Path(layouts).parent), "--host", "*")
    assert (refused.exit_code, f"set --file {layouts}" in refused.stderr) == (2, True)


def test_the_options_of_layouts_need_a_layout_file(lab: Lab, tmp_path: Path) -> None:
    path = tmp_path / "site.yaml"
    path.write_text("{version: 1, vms: [{vm: ml-01, drs: cluster}]}", encoding="utf-8")
    for stray in (("--layout", "off"), ("--host", "esx-01"), ("--mode-only",)):
        refused = lab.run("diff", "--file", str(path), *stray)
        assert (refused.exit_code, "need a file with mig-configs or vgpu-configs" in refused.stderr) == (2, True)
