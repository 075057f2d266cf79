"""Requests across sites as typed: two simulated vCenters with VMs of the same names, and one that is dead."""

from __future__ import annotations

import json
import socket
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from importlib.resources import files
from pathlib import Path
from typing import Any, Final

import pytest
from typer.testing import CliRunner, Result

from gpuops.cli.app import app
from tests.bench.simulators import our_simulator
from tests.document_schemas import misfits

SEEDS: Final = {"fra": "1", "muc": "2"}
POLICY: Final = (files("gpuops.sim") / "scenarios" / "lab-policy.yaml").read_text(encoding="utf-8")
WINDOWS: Final = "windows: [{zone: Europe/Berlin, opens: '20:00', closes: '05:00', back_by: '07:00'}]"
QUEUE: Final = """
ml:
  queue:
    - {vm: ml-01, across_sites: true}
    - {vm: ml-06, relocate: true, across_sites: true}
    - {vm: ml-09, relocate: true, across_sites: true}
fair_share: {by: 'attribute:gpuops.owner', across_sites: true, teams: {research: {at_most: {gpus: 1.5}}}}
"""


@pytest.fixture
def sites(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., None]]:
    """Writes the configuration file: two served sites with one policy, and others."""
    policy = tmp_path / "policy.yaml"
    policy.write_text(POLICY[: POLICY.index("\nml:")] + QUEUE, encoding="utf-8")
    with ExitStack() as stack:
        known: dict[str, dict[str, str]] = {}
        for name, seed in SEEDS.items():
            endpoint = stack.enter_context(our_simulator("lab", "--clock", "stepped", "--seed", seed)).endpoint
            secret = tmp_path / name
            secret.write_text(endpoint.password, encoding="utf-8")
            secret.chmod(0o600)
            known[name] = {"host": endpoint.url, "username": endpoint.username, "password_file": str(secret),
                           "ca_file": str(endpoint.ca_file), "policy": str(policy)}  # fmt: skip

        def write(**others: dict[str, str]) -> None:
            tables = (
                f"[targets.{name}]\n" + "".join(f"{key} = {json.dumps(value)}\n" for key, value in keys.items())
                for name, keys in {**known, **others}.items()
            )
            (tmp_path / "config.toml").write_text("\n".join(tables), encoding="utf-8")

        monkeypatch.setenv("GPUOPS_CONFIG", str(tmp_path / "config.toml"))
        write()
        yield write


@pytest.fixture
def dead(tmp_path: Path) -> dict[str, str]:
    """A site at whose address nobody listens."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"http://127.0.0.1:{server.getsockname()[1]}"
    secret = tmp_path / "dead"
    secret.write_text("x", encoding="utf-8")
    secret.chmod(0o600)
    return {"host": address, "username": "x", "password_file": str(secret)}


def run(*words: str) -> Result:
    return CliRunner().invoke(app, list(words))


def asked(*words: str, code: int = 0) -> dict[str, Any]:
    result = run("queue", "--site", "all", *words, "-o", "json")
    assert result.exit_code == code, result.output
    document = json.loads(result.stdout)
    assert misfits(document) == []
    found: dict[str, Any] = document["across_sites"]
    return found


def sites_of(found: dict[str, Any]) -> dict[str, tuple[str, str | None]]:
    return {each["name"]: (each["fate"], each["site"]) for each in found["requests"]}


def night(site: str, policy: Path) -> Result:
    return run("rotate", "night", "--policy", str(policy), "--vcenter", site, "--yes", "-o", "json")


def powered_on(site: str) -> list[str]:
    vms = json.loads(run("inventory", "--vms", "--vcenter", site, "-o", "json").stdout)["vms"]
    return sorted(vm["name"] for vm in vms if vm["name"] in ("ml-01", "ml-06", "ml-09") and vm["power"] == "poweredOn")


@pytest.mark.usefixtures("sites")
class TestTwoSites:
    def test_shown_written_down_and_obeyed(self, tmp_path: Path) -> None:
        policy = tmp_path / "policy.yaml"
        shown = asked()
        assert (shown["assigned"], shown["unread"]) == (False, {})
        # nothing is assigned: no night starts a request
        alone = json.loads(run("queue", "--policy", str(policy), "--vcenter", "fra", "-o", "json").stdout)
        assert {each["turn"] for each in alone["queue"]} == {"not now"}
        assert "assigned to no site yet: gpuops queue --site all --assign" in alone["queue"][0]["reason"]

        found = asked("--assign")
        assert found["assigned"] and sites_of(found) == sites_of(shown)
        going = {name: site for name, (fate, site) in sites_of(found).items() if fate == "goes"}
        assert sorted(going) == ["ml-01", "ml-06"] and set(going.values()) <= {"fra", "muc"}
        [waits] = [each for each in found["requests"] if each["fate"] == "waits"]
        assert (waits["name"], waits["team"]) == ("ml-09", "research")
        assert waits["reason"].startswith("team research has 1.5 of 1.5 GPUs at once")

        for site in ("fra", "muc"):
            assert night(site, policy).exit_code == 0
        assert {site: powered_on(site) for site in ("fra", "muc")} == {
            site: sorted(name for name, of in going.items() if of == site) for site in ("fra", "muc")
        }
        after = asked("--assign")
        assert {name: (fate, site) for name, (fate, site) in sites_of(after).items() if fate != "waits"} == {
            name: ("runs", site) for name, site in going.items()
        }

    def test_a_night_that_began_before_the_request_was_moved_starts_nothing(self, tmp_path: Path) -> None:
        from gpuops.execute.runs.assignments import AssignmentStore
        from gpuops.execute.state.state_dir import default_state_dir

        asked("--assign")
        store = AssignmentStore(default_state_dir())
        for each in store.read().values():
            assert not store.change(
                [each.__class__(each.name, "other", "ber", "", 1.0, None, False, each.version, each.at)]
            )
        plan = json.loads(night("fra", tmp_path / "policy.yaml").stdout)
        reasons = {each["subject"]: each["reason"] for each in plan["choices"]}
        assert reasons["ml-01"] == "a request across sites: it is assigned to ber"
        assert powered_on("fra") == []

    def test_as_text(self, golden: Callable[[str, str], None], tmp_path: Path) -> None:
        policy = tmp_path / "windows.yaml"
        policy.write_text((tmp_path / "policy.yaml").read_text(encoding="utf-8").replace("windows: any", WINDOWS))
        words = ("queue", "--site", "all", "--policy", str(policy), "--at", "2026-11-23 22:00")
        text = run(*words).stdout
        golden("across.txt", text[text.index("requests across sites") :])

    def test_wrong_input(self, sites: Callable[..., None]) -> None:
        refused = run("queue", "--site", "fra", "--assign")
        assert refused.exit_code == 2 and "--site fra may leave one out that runs it" in refused.stderr
        refused = run("queue", "--vcenter", "fra", "--assign")
        assert refused.exit_code == 2 and "--assign is about several sites" in refused.stderr
        refused = run("queue", "--site", "all", "--assign", "--at", "22:00")
        assert refused.exit_code == 2 and "--at shows another night" in refused.stderr


def test_a_dead_site_is_named_and_gets_nothing(sites: Callable[..., None], dead: dict[str, str]) -> None:
    sites(ber=dead)
    found = asked("--assign", code=4)
    assert list(found["unread"]) == ["ber"]
    assert {site for _, site in sites_of(found).values()} <= {"fra", "muc", None}


def test_sites_without_a_common_journal_are_shown_and_not_assigned(
    sites: Callable[..., None], dead: dict[str, str]
) -> None:
    sites(ber={**dead, "journal_url": "postgresql://gpuops@127.0.0.1:1/gpuops"})
    refused = run("queue", "--site", "all", "--assign")
    assert refused.exit_code == 2 and "ber, fra, muc do not keep their journals in one place" in refused.stderr
    assert asked(code=4)["assigned"] is False
