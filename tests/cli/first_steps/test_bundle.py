"""`gpuops bundle`: what it writes and refuses, and that nothing of a site is in it."""

from __future__ import annotations

import json
import re
import socket
import stat
import zipfile
from collections.abc import Iterator
from dataclasses import replace
from importlib import metadata
from pathlib import Path
from typing import Any, Final

import pytest
from typer.testing import CliRunner, Result

from gpuops.cli.app import app
from gpuops.sim.scenario.build import build
from gpuops.sim.server import SimServer, start
from gpuops.sim.state.drs import ClusterRule
from gpuops.sim.state.vm_state import Question
from gpuops.sim.world import World
from tests.canary import CANARY, require_hidden
from tests.cli.conftest import Lab, lab_on

MARK: Final = "Zq7x"
"""In every name of the hostile site."""
NAMES: Final = (
    f"{MARK} password=hunter2",
    f"10.66.77.88 {MARK}",
    f"fd00:dead:beef::7 {MARK}",
    f"00:50:56:aa:bb:cc {MARK}",
    f"dc1.{MARK}corp.example.com",
    f"../../../../etc/{MARK}passwd",
    f"..\\..\\{MARK}",
    f"{MARK}\x85\u2028\u202e\u200b\ufeff\x9b2J",
    f"{MARK}" + "long" * 200,
    f"日本語 {MARK} 🚀 ß",
    f"{{{{ lookup('pipe','{MARK}') }}}}",
    f"{{0}} {{name}} {MARK} %s ${{HOME}} `id`",
    f'"}}, "{MARK}": {{"',
    f"=cmd|'/c {MARK}'!A1",
    f"<!DOCTYPE {MARK} [<!ENTITY x SYSTEM 'file:///etc/passwd'>]>",
    f"vm-3fa2c81d09be {MARK}",
    f"poweredOn {MARK}",
    f"{CANARY} {MARK}",
)
BUILT_IN: Final = frozenset({"host", "network", "datastore", "Datacenters", "Resources"})
"""Names that every vCenter has."""
TRACES: Final = (MARK, "hunter2", "10.66.77.88", "dead:beef", "aa:bb:cc", "example.com", "etc/", "lookup", "DOCTYPE")


def hostile(world: World) -> World:
    """Every text that an administrator can write, and some that only a hostile vCenter would."""
    names = iter(range(10_000))

    def name() -> str:
        number = next(names)
        return f"{NAMES[number % len(NAMES)]} {number}"

    for kind in ("VirtualMachine", "HostSystem", "ClusterComputeResource", "Datacenter", "Network"):
        for named_object in world.by_type(kind):
            named_object.rename(name())
    for store in world.by_type("Datastore"):
        store.rename(name())
    for folder in world.by_type("Folder"):
        if folder.name in ("vdi", "ml"):
            folder.rename(name())
    fields = [world.custom_fields.define(name()) for _ in range(4)]
    for number, vm in enumerate(world.by_type("VirtualMachine")):
        state = vm.state
        state.annotation = name()
        state.attributes = {**state.attributes, fields[number % 4]: name(), **dict.fromkeys(state.attributes, name())}
        state.template = replace(state.template, guest_name=name(), guest_id=name())
        keys = (f"pciPassthru.{name()}", "pciPassthru0.cfg.gpu-pci-id", "numa.nodeAffinity", "guestinfo.gpuops.x")
        state.extra_config = (*state.extra_config, *((key, name()) for key in keys))
        if number % 9 == 0:
            state.managed_by = (name(), name())
        if number % 10 == 0:
            state.question = Question(name(), name(), ((name(), name()),))
    for host in world.by_type("HostSystem"):
        host.state.gpus[0].label = name()
        host.state.driver_version = name()
        host.state.module_options = name()
        host.state.model = replace(host.state.model, vendor=name(), model=name(), cpu_model=name())
        cluster = host.compute_resource()
        cluster.drs.options[name()] = name()
        cluster.drs.options["VgpuMMAutomationTimeoutSecs"] = name()
        vms = tuple(vm.moid for vm in host.vms()[:2])
        key = len(cluster.drs.rules) + 1
        cluster.drs.rules[key] = ClusterRule(key, name(), "ClusterAntiAffinityRuleSpec", True, True, vms)
    return world


@pytest.fixture
def site(tmp_path: Path, clean: Path) -> Iterator[Lab]:
    with SimServer(hostile(build("vdi")), password=CANARY) as server, lab_on(server, tmp_path, clean) as lab:
        yield lab


def texts_of(lab: Lab) -> set[str]:
    """Names, ids and addresses of the site, as the simulator has them."""
    world = lab.server.world
    names = {
        named_object.name
        for named_object in world.registry
        if hasattr(named_object, "name") and hasattr(named_object, "rename")
    }
    for vm in world.by_type("VirtualMachine"):
        names |= {vm.state.uuid, vm.state.instance_uuid, vm.state.annotation, *vm.state.attributes.values()}
    for host in world.by_type("HostSystem"):
        names |= {host.state.uuid, host.state.uuid[-8:].upper(), host.state.model.cpu_model}
    names |= {lab.server.url, lab.server.username, "127.0.0.1", str(lab.server.ca_file), str(lab.ready)}
    names |= {socket.gethostname(), str(Path.home())}
    return {text for text in names if len(text) > 3} - BUILT_IN


def bytes_of(path: Path) -> Iterator[tuple[str, bytes]]:
    """The archive as it is, and each file in it."""
    yield str(path), path.read_bytes()
    with zipfile.ZipFile(path) as archive:
        for entry in archive.infolist():
            yield entry.filename, archive.read(entry)


def test_a_bundle_holds_nothing_of_a_hostile_site(site: Lab, tmp_path: Path) -> None:
    machines = list(site.server.world.by_type("VirtualMachine"))
    free = [vm for vm in machines if vm.state.power == "poweredOff" and not (vm.state.managed_by or vm.state.question)]
    detach = site.run("detach", "--vm", f"moid:{free[-1].moid}", "--all")
    assert detach.exit_code == 0, detach.output
    path = tmp_path / "bundle.zip"
    result = site.run("bundle", "--yes", "--save", str(path))
    assert result.exit_code == 0, result.output
    site_texts = sorted(texts_of(site))
    assert len(site_texts) > 200
    contents = [("stdout", result.stdout.replace(str(path), "").encode()), *bytes_of(path)]
    assert {name for name, _ in contents} >= {"scenario.json", "versions.json"}
    for name, content in contents:
        text = content.decode("utf-8", "replace")
        require_hidden(name, text)
        unescaped = json.dumps(json.loads(content), ensure_ascii=False) if name.endswith(".json") else text
        for trace in (*TRACES, *site_texts):
            assert trace.lower() not in text.lower(), f"{name} holds {trace!r}"
            assert trace not in unescaped, f"{name} holds {trace!r}"
        assert {*re.findall(r"\b\d{1,3}(?:\.\d{1,3}){3}\b", text)} <= {"8.0.3.0", metadata.version("pyvmomi")}, name
        assert not re.search(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-", text), name
        assert not re.search(r"([0-9a-f]{2}:){5}", text), name


def test_a_first_contact_puts_nothing_of_a_hostile_site_into_the_bundle(site: Lab, tmp_path: Path) -> None:
    """The terminal shows names; the archive has none."""
    path = tmp_path / "bundle.zip"
    result = site.run("bundle", "--first-contact", "--yes", "--save", str(path))
    assert result.exit_code == 0, result.output
    require_hidden("stdout", result.stdout)
    site_texts = sorted(texts_of(site))
    for name, content in bytes_of(path):
        text = content.decode("utf-8", "replace")
        require_hidden(name, text)
        for trace in (*TRACES, *site_texts):
            assert trace.lower() not in text.lower(), f"{name} holds {trace!r}"


@pytest.mark.long
def test_a_hostile_site_is_played(site: Lab, tmp_path: Path) -> None:
    path = tmp_path / "bundle.zip"
    assert site.run("bundle", "--yes", "--save", str(path)).exit_code == 0
    played = CliRunner().invoke(app, ["capacity", "--output", "json", "--vcenter", f"sim:{path}"])
    assert played.exit_code == 0, played.output
    capacity = site.run("capacity", "--output", "json")
    figures = [[profile["now"] for profile in json.loads(result.stdout)["profiles"]] for result in (played, capacity)]
    assert figures[0] == figures[1]


def run(*words: str) -> Result:
    return CliRunner().invoke(app, list(words))


@pytest.mark.long
def test_a_bundle_is_written_once_for_its_owner_alone(tmp_path: Path) -> None:
    path = tmp_path / "bundle.zip"
    words = ("bundle", "--yes", "--save", str(path), "--vcenter", "sim:lab")
    result = run(*words)
    assert result.exit_code == 0, result.output
    assert f"{path}: written" in result.stdout
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    before = path.read_bytes()
    second_run = run(*words)
    assert (second_run.exit_code, second_run.stderr) == (
        2, f"error: {path} exists already\nnext: choose another file with --save\n"
    )  # fmt: skip
    assert path.read_bytes() == before


def test_dry_run_writes_nothing_at_all(tmp_path: Path, clean: Path) -> None:
    path = tmp_path / "bundle.zip"
    result = run("bundle", "--dry-run", "--save", str(path), "--vcenter", "sim:lab")
    assert result.exit_code == 0, result.output
    assert "scenario.json" in result.stdout
    assert f"{path}: not written yet" in result.stdout
    assert not path.exists()
    assert not list(clean.rglob("bundle*"))


@pytest.mark.long
def test_nobody_is_there_to_agree(tmp_path: Path, clean: Path) -> None:
    path = tmp_path / "bundle.zip"
    result = run("bundle", "--save", str(path), "--vcenter", "sim:lab")
    assert result.exit_code == 2
    assert "scenario.json" in result.stderr, "it is shown before anything is asked"
    assert result.stderr.endswith(
        "error: a bundle is to be given to others, and there is no terminal to ask at\n"
        "next: check the plan with --dry-run, then add --yes\n"
    )
    assert not path.exists()
    assert not list(clean.rglob("bundle*"))


def documents(path: Path) -> dict[str, Any]:
    with zipfile.ZipFile(path) as archive:
        return {name: json.loads(archive.read(name)) for name in archive.namelist()}


def test_pseudonyms_of_one_machine_are_the_same_and_can_be_looked_up(tmp_path: Path, clean: Path) -> None:
    paths = [tmp_path / f"{number}.zip" for number in range(2)]
    for path in paths:
        assert run("bundle", "--yes", "--save", str(path), "--vcenter", "sim:lab").exit_code == 0
    first, two = map(documents, paths)
    assert first["scenario.json"]["vms"][0]["name"] == two["scenario.json"]["vms"][0]["name"]
    assert first["manifest.json"]["site"] == two["manifest.json"]["site"]
    named = first["scenario.json"]["vms"][0]["name"]
    revealed = run("bundle", "--reveal", named)
    assert (revealed.exit_code, revealed.stdout) == (0, f"{named}: vdi-01\n")
    state = clean / ".local" / "state" / "gpuops"
    for name in ("bundle.key", "bundle-names.json"):
        assert stat.S_IMODE((state / name).stat().st_mode) == 0o600
    assert (state / "bundle.key").read_text("ascii").strip().encode() not in paths[0].read_bytes()


@pytest.mark.long
@pytest.mark.parametrize(
    ("word", "reason"),
    [
        ("vm-000000000000", "'vm-000000000000' is in no bundle that this user wrote"),
        ("vm-1234", "an id such as vm-1234 is vCenter's own"),
    ],
)
def test_a_word_that_no_bundle_has(word: str, reason: str, tmp_path: Path) -> None:
    assert run("bundle", "--yes", "--save", str(tmp_path / "b.zip"), "--vcenter", "sim:lab").exit_code == 0
    refusal = run("bundle", "--reveal", word)
    assert refusal.exit_code == 2
    assert re.search(reason, refusal.stderr)


@pytest.mark.parametrize("content", ["", "short\n", "g" * 64])
def test_a_key_that_is_none(content: str, clean: Path, tmp_path: Path) -> None:
    state = clean / ".local" / "state" / "gpuops"
    state.mkdir(parents=True)
    state.chmod(0o700)
    (state / "bundle.key").write_text(content, encoding="ascii")
    (state / "bundle.key").chmod(0o600)
    result = run("bundle", "--yes", "--save", str(tmp_path / "b.zip"), "--vcenter", "sim:lab")
    assert result.exit_code == 7
    assert "contains no key of 64 hexadecimal digits" in result.stderr
    (state / "bundle.key").chmod(0o644)
    assert "others can read or write" in run("bundle", "--dry-run", "--vcenter", "sim:lab").stderr


@pytest.mark.long
def test_ordinary_settings_of_a_vm_and_no_time_zone_of_the_site(lab: Lab, tmp_path: Path) -> None:
    """As administrators spell them: True, and a moment by the clock of the site."""
    machines = {vm.name: vm for vm in lab.server.world.by_type("VirtualMachine")}
    settings = {"pciPassthru.use64bitMMIO": "True", "numa.nodeAffinity": "0,1", "numa.vcpu.preferHT": "true",
             "sched.cpu.affinity": "0-3", "pciPassthru0.cfg.enable_uvm": "1"}  # fmt: skip
    machines["vdi-01"].state.extra_config = tuple(settings.items())
    field = lab.server.world.custom_fields.define("gpuops.return")
    attributes = {
        "vdi-01": ("2026-11-27T09:00:00+05:45", "2026-11-27T03:15:00+00:00"),
        "vdi-02": ("2026-11-27T09:00:00+01:00:30", "2026-11-27T07:59:30+00:00"),
    }
    for name, (typed, _) in attributes.items():
        machines[name].state.attributes = {**machines[name].state.attributes, field: typed}
    path = tmp_path / "bundle.zip"
    result = lab.run("bundle", "--yes", "--save", str(path))
    assert result.exit_code == 0, result.output
    written = documents(path)
    vms = {row["as_read"]["moid"]: row for row in written["scenario.json"]["vms"]}
    for name, (_, written_value) in attributes.items():
        assert vms[machines[name].moid]["attributes"]["gpuops.return"] == written_value
    spelled = {key: value.upper() for key, value in settings.items()}
    assert vms[machines["vdi-01"].moid]["extra_config"] == spelled
    assert b"05:45" not in b"".join(content for _, content in bytes_of(path))
    assert len(list(build(str(path)).by_type("VirtualMachine"))) == len(vms)


@pytest.mark.long
def test_sim_serve_plays_a_bundle(tmp_path: Path) -> None:
    path = tmp_path / "bundle.zip"
    assert run("bundle", "--yes", "--save", str(path), "--vcenter", "sim:scattered").exit_code == 0
    with start(str(path), clock="stepped") as server:
        assert len(list(server.world.by_type("HostSystem"))) > 1
