"""Names that would move a cursor, end a line or turn text around: every view shows them, and none obeys them."""

from __future__ import annotations

import json
import re
import shlex
import sys
import unicodedata
from collections.abc import Iterator
from importlib.resources import files
from itertools import cycle
from pathlib import Path
from typing import Any, Final

import pytest
from typer.testing import CliRunner, Result

from gpuops.cli.app import app
from gpuops.sim.scenario.build import build
from gpuops.sim.server import SimServer
from gpuops.sim.wire import sim_client
from tests.cli.test_canary import SWEPT

HIDDEN: Final = frozenset({"Cc", "Cf", "Cs", "Zl", "Zp"})
SENT_BY_VCENTER: Final = "\x9b2J\x85\u2028\u2029\u202e\u2066\u200b\ufeff\xad"
"""What XML 1.0 can carry of them."""
POLICY: Final = (files("gpuops.sim") / "scenarios" / "lab-policy.yaml").read_text(encoding="utf-8")
OFFLINE: Final = (
    "inventory",
    "inventory --vms",
    "inventory --vms -o yaml",
    "inventory -o json",
    "capacity",
    "place --profile a100-3-20c --vcpu 4 --memory 16GiB --explain",
    "place --profile a100-3-20c --vcpu 400 --memory 16GiB",
    "defrag --powered-off --dry-run",
    "attach --vm moid:{ml-07} --profile a100-3-20c --dry-run --explain",
    "attach --vm moid:{legacy} --profile a100-3-20c --dry-run",
    "attach --vm moid:{ml-08} --device 0000:99:00.0 --dry-run -o json",
    "detach --vm moid:{ml-01} --all --dry-run",
    "attach --vm ml-70 --profile a100-3-20c --dry-run",
    "rotate plan --policy {policy}",
    "queue --policy {policy}",
    "rotate night --policy {policy} --dry-run --explain",
)
LIVE: Final = (
    "doctor",
    "guest check --vm moid:{ml-01}",
    "report",
    "readiness",
    "host scheduler show",
    "host mode show",
    "top --show vms --policy {policy}",
    "top --show gpus -o json",
    "attach --vm moid:{ml-07} --profile a100-3-20c",
    "detach --vm moid:{vdi-01} --all",
    "rotate night --policy {policy} --yes",
    "rotate status --policy {policy}",
    "idle --policy {policy}",
    "idle --policy {policy} --vm moid:{vdi-01}",
    "rotate day --policy {policy} --yes",
    "history",
    "history -o csv",
    "history show {night}",
    "history show {night} -o csv",
    "sim ledger --ready-file {ready}",
)


def require_harmless(words: str, result: Result) -> None:
    for stream in (result.stdout, result.stderr):
        hidden = {
            f"U+{ord(character):04X}"
            for character in stream
            if unicodedata.category(character) in HIDDEN and character != "\n"
        }
        assert not hidden, f"gpuops {words} prints {sorted(hidden)}"


def lines(result: Result) -> tuple[int, int, int]:
    return result.exit_code, result.stdout.count("\n"), result.stderr.count("\n")


def run(words: str, *options: str, **named: object) -> Result:
    return CliRunner().invoke(app, [word.format(**named) for word in [*words.split(), *options]])


def policy(folder: Path, tail: str) -> Path:
    """Its queue names VMs as vCenter does."""
    text = POLICY
    for name in ("ml-01", "ml-06", "ml-09"):
        text = text.replace(f"vm: {name}", f"vm: {json.dumps(name + tail)}")
    path = folder / f"policy-{bool(tail)}.yaml"
    path.write_text(text, encoding="utf-8")
    return path


def endings() -> list[str]:
    """All code points that are not seen as themselves, eight in each; half characters, which no snapshot may hold, are
    tried on their own."""
    every = map(chr, range(sys.maxunicode + 1))
    hidden = "".join(character for character in every if unicodedata.category(character) in HIDDEN - {"Cs"})
    return [hidden[start : start + 8] for start in range(0, len(hidden), 8)]


def rename_objects(document: dict[str, Any]) -> dict[str, Any]:
    """A snapshot whose VMs, hosts, clusters and datastores have names and paths that end in one of these."""
    tails = cycle(endings())
    for kind in ("vms", "hosts", "clusters", "datastores"):
        for named_object in document["inventory"][kind].values():
            named_object |= {key: named_object[key] + next(tails) for key in ("name", "path") if key in named_object}
    return document


@pytest.fixture
def snapshots(tmp_path: Path, saved_lab: Path) -> tuple[Path, Path, dict[str, str]]:
    """Plain and hostile, and the ids of VMs by their plain name."""
    plain, hostile = saved_lab, tmp_path / "hostile.json"
    document = json.loads(plain.read_text(encoding="utf-8"))
    refs = {vm["name"]: vm["ref"] for vm in document["inventory"]["vms"].values()}
    hostile.write_text(json.dumps(rename_objects(document)), encoding="utf-8")
    return plain, hostile, refs


@pytest.mark.long
def test_no_view_of_a_snapshot_obeys_them(tmp_path: Path, snapshots: tuple[Path, Path, dict[str, str]]) -> None:
    plain, hostile, refs = snapshots
    for words in OFFLINE:
        usual = run(words, "--inventory", str(plain), policy=policy(tmp_path, ""), **refs)
        view = run(words, "--inventory", str(hostile), policy=policy(tmp_path, "\x9b\u202e\u2028"), **refs)
        require_harmless(words, view)
        assert usual.exit_code in (0, 2, 3), usual.stderr
        # a policy's queue names the plain ones; and YAML folds a long text where it likes
        if "rotate" not in words and "yaml" not in words:
            assert lines(view) == lines(usual), (words, view.stdout[-500:], view.stderr)


def test_no_error_obeys_what_was_typed(clean: Path) -> None:
    for words in ("rotate plan --vcenter sim:lab --policy", "inventory --inventory", "sim ledger --ready-file"):
        refusal = run(words, "/nowhere/\x1b[2J\u202e\u2028.yaml")
        require_harmless(words, refusal)
        assert (refusal.exit_code, "\\u{1b}[2J\\u{202e}" in refusal.stderr) == (2, True), refusal.stderr


@pytest.fixture
def labs(clean: Path) -> Iterator[tuple[SimServer, SimServer]]:
    """Plain and hostile."""
    with SimServer(build("lab")) as plain, SimServer(build("lab")) as hostile:
        for kind in ("VirtualMachine", "HostSystem", "ClusterComputeResource", "Datastore"):
            for named_object in hostile.world.by_type(kind):
                named_object.name += SENT_BY_VCENTER
        yield plain, hostile


@pytest.mark.long
def test_no_view_of_a_vcenter_obeys_them(
    tmp_path: Path, labs: tuple[SimServer, SimServer], monkeypatch: pytest.MonkeyPatch
) -> None:
    codes: dict[str, tuple[int, int, int]] = {}
    for server, tail in zip(labs, ("", SENT_BY_VCENTER), strict=True):
        ready = tmp_path / "ready.json"
        sim_client.write(ready, sim_client.of(server))
        monkeypatch.setenv("GPUOPS_STATE_DIR", str(tmp_path / f"state-{bool(tail)}"))
        monkeypatch.setenv("GPUOPS_VCENTER", f"sim@{ready}")
        refs = {vm.name.removesuffix(tail): vm.moid for vm in server.world.by_type("VirtualMachine")}
        for words in LIVE:
            night = json.loads(run("history -o json").stdout)["nights"][-1]["night"] if "{night}" in words else ""
            view = run(words, policy=policy(tmp_path, tail), ready=ready, night=night, **refs)
            require_harmless(words, view)
            assert view.exit_code in (0, 3), (words, view.stderr)
            assert codes.setdefault(words, lines(view)) == lines(view), (words, view.stdout, view.stderr)
        assert server.world.ledger, "things were done"


@pytest.mark.long
def test_no_command_obeys_them(
    tmp_path: Path, labs: tuple[SimServer, SimServer], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every command of the sweep for passwords, with the ids of its VMs: on a terminal each view is escaped once."""
    hostile = labs[1]
    ready = tmp_path / "ready.json"
    sim_client.write(ready, sim_client.of(hostile))
    monkeypatch.setenv("GPUOPS_STATE_DIR", str(tmp_path / "state"))
    monkeypatch.setenv("GPUOPS_VCENTER", f"sim@{ready}")
    monkeypatch.chdir(tmp_path)
    refs = {vm.name.removesuffix(SENT_BY_VCENTER): vm.moid for vm in hostile.world.by_type("VirtualMachine")}
    for words in SWEPT:
        by_id = re.sub(r"(?<=--vm )[\w-]+", lambda name: f"moid:{refs[name[0]]}" if name[0] in refs else name[0], words)
        require_harmless(by_id, CliRunner().invoke(app, shlex.split(by_id)))
