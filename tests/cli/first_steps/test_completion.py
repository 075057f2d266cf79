"""Completion offers what was read lately, and never connects."""

from __future__ import annotations

import os
import stat
from datetime import UTC, datetime
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from gpuops.config.user_paths import cache_dir
from gpuops.console import completion
from gpuops.model.devices.gpu import Passthrough, PciAddress, PhysicalGpu
from gpuops.model.vcenter.host import Cluster, Host, OfferedProfile
from gpuops.model.vcenter.inventory import Inventory
from gpuops.model.vcenter.vm import Vm

INVENTORY = Inventory(
    "uuid",
    "8.0.3.0",
    datetime(2026, 11, 2, tzinfo=UTC),
    hosts={
        "h": Host(
            "h",
            "esx-01",
            profiles=(OfferedProfile("grid_a100-3-20c"), OfferedProfile("nvidia_a40-8q")),
            gpus=(
                PhysicalGpu(
                    PciAddress.parse("0000:3b:00.0"),
                    "A100",
                    0x10DE,
                    0x20F1,
                    passthrough=Passthrough(True, True, True, "train"),
                ),
            ),
        )
    },
    clusters={"c": Cluster("c", "gpu-1")},
    vms={ref: Vm(ref, name) for ref, name in (("a", "ml-07"), ("b", "ml-08"), ("c", "ml-09\x1b[2J"), ("d", "desk"))},
)


app = typer.Typer()


@app.command()
def command(
    vcenter: str | None = None,
    vm: str = typer.Option("", autocompletion=completion.vms),
    profile: str = typer.Option("", autocompletion=completion.profiles),
    cluster: str = typer.Option("", autocompletion=completion.clusters),
    target: str = typer.Option("", autocompletion=completion.targets),
) -> None:
    raise AssertionError("completion must not run the command")


def complete(words: str) -> list[str]:
    environ = {"_COMMAND_COMPLETE": "complete_bash", "COMP_WORDS": words, "COMP_CWORD": str(len(words.split(" ")) - 1)}
    result = CliRunner().invoke(app, [], env=environ, prog_name="command")
    return result.stdout.split("\n") if result.stdout.strip() else []


def test_names_seen_lately_are_offered() -> None:
    completion.remember("sim:lab", INVENTORY)
    assert complete("command --vcenter sim:lab --vm ml") == ["ml-07", "ml-08", ""]
    assert complete("command --vcenter sim:lab --cluster g") == ["gpu-1", ""]
    assert complete("command --vcenter sim:lab --profile a100") == ["a100-3-20c", ""]
    assert complete("command --vcenter sim:lab --profile nvidia") == ["nvidia_a40-8q", ""]


def test_the_vcenter_may_be_named_by_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    completion.remember("prod", INVENTORY)
    monkeypatch.setenv("GPUOPS_VCENTER", "prod")
    assert complete("command --vm d") == ["desk", ""]


def test_another_vcenters_names_are_not_offered() -> None:
    completion.remember("sim:lab", INVENTORY)
    assert complete("command --vcenter sim:vdi --vm ml") == []


def test_old_names_are_not_offered() -> None:
    completion.remember("sim:lab", INVENTORY)
    (path,) = cache_dir(os.environ).iterdir()
    past = path.stat().st_mtime - completion.MAX_AGE_S - 1
    os.utime(path, (past, past))
    assert complete("command --vcenter sim:lab --vm ml") == []


def test_what_can_complete_nothing_is_dropped() -> None:
    """By age, by number, and what a killed run left half written; nothing that is not ours."""
    folder = cache_dir(os.environ)
    for number in range(completion.MOST_FILES + 8):
        completion.remember(f"vc-{number}", INVENTORY)
    assert len(list(folder.iterdir())) == completion.MOST_FILES
    half, foreign = folder / ".names-0123.json.x7", folder / "notes.txt"
    for path in (half, foreign):
        path.touch()
    for path in folder.iterdir():
        past = path.stat().st_mtime - completion.MAX_AGE_S - 1
        os.utime(path, (past, past))
    completion.remember("prod", INVENTORY)
    assert foreign in folder.iterdir()
    assert len(list(folder.iterdir())) == 2
    assert complete("command --vcenter prod --vm d") == ["desk", ""]


def test_a_damaged_cache_offers_nothing() -> None:
    completion.remember("sim:lab", INVENTORY)
    (path,) = cache_dir(os.environ).iterdir()
    path.write_text("[", encoding="utf-8")
    assert complete("command --vcenter sim:lab --vm ml") == []


def test_nothing_configured_offers_nothing() -> None:
    assert complete("command --vm ml") == []


def test_targets_come_from_the_configuration_file(clean: Path) -> None:
    path = clean / ".config" / "gpuops" / "config.toml"
    path.parent.mkdir(parents=True)
    path.write_text("[targets.prod]\nhost = 'vc'\n", encoding="utf-8")
    assert complete("command --target pr") == ["prod", ""]


def test_sites_are_the_targets_and_all_of_them(clean: Path) -> None:
    path = clean / ".config" / "gpuops" / "config.toml"
    path.parent.mkdir(parents=True)
    path.write_text("[targets.fra]\nhost = 'vc'\n[targets.aix]\nhost = 'vc'\n", encoding="utf-8")
    assert completion.sites("") == ["fra", "aix", "all"]
    assert completion.sites("a") == ["aix", "all"]


def test_the_cache_is_private_and_an_unwritable_one_is_no_error(clean: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    completion.remember("sim:lab", INVENTORY)
    (path,) = cache_dir(os.environ).iterdir()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    (clean / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(clean / "file"))
    completion.remember("sim:lab", INVENTORY)
