"""Requests across sites as typed: two simulated vCenters with VMs of the same names, and one that is dead."""

from __future__ import annotations

import json
import socket
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from importlib.resources import files
from pathlib import Path
from typing import Any, Final

import pytest
from typer.testing import CliRunner, Result

from gpuops.cli.app import app
from tests.bench.simulator.simulators import our_simulator
from tests.document_schemas import misfits
from tests.peers.processes import Endpoint

Configured = Callable[..., None]
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


@contextmanager
def _served() -> Iterator[dict[str, Endpoint]]:
    with ExitStack() as stack:
        yield {
            name: stack.enter_context(our_simulator("lab", "--clock", "stepped", "--seed", seed)).endpoint
            for name, seed in SEEDS.items()
        }


@pytest.fixture(scope="module")
def served() -> Iterator[dict[str, Endpoint]]:
    """For tests that start nothing."""
    with _served() as endpoints:
        yield endpoints


def _configured(endpoints: dict[str, Endpoint], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Configured:
    policy = tmp_path / "policy.yaml"
    policy.write_text(POLICY[: POLICY.index("\nml:")] + QUEUE, encoding="utf-8")
    known: dict[str, dict[str, str]] = {}
    for name, endpoint in endpoints.items():
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
    return write


@pytest.fixture
def sites(served: dict[str, Endpoint], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Configured:
    """Writes the configuration file: two served sites with one policy, and others."""
    return _configured(served, tmp_path, monkeypatch)


@pytest.fixture
def own_sites(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Configured]:
    """The same, with vCenters of the test's own, in which it may start VMs."""
    with _served() as endpoints:
        yield _configured(endpoints, tmp_path, monkeypatch)


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


@pytest.mark.usefixtures("own_sites")
class TestNights:
    @pytest.mark.long
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

    @pytest.mark.long
    def test_what_was_given_away_between_look_and_start_is_not_started(self, tmp_path: Path) -> None:
        """The run's own beginning is in the journal by then, and it is ended there; nothing was sent."""
        from gpuops.api import rotate_night
        from gpuops.cli.opening import open_site
        from gpuops.cli.options import CommonOptions
        from gpuops.config.policy import load_policy
        from gpuops.execute.runs.assignments import AssignedElsewhere, AssignmentStore

        going = {name: site for name, (fate, site) in sites_of(asked("--assign")).items() if fate == "goes"}
        name, site_name = min(going.items())
        assert site_name is not None
        with open_site(CommonOptions(vcenter=site_name)) as site:
            store = AssignmentStore(site.state_dir)

            def given_away(_: object) -> None:
                seen = store.read()[name]
                assert not store.change([replace(seen, vcenter="other", site="ber")])

            with pytest.raises(AssignedElsewhere) as refused:
                rotate_night(load_policy(tmp_path / "policy.yaml"), site, apply=True, consent=given_away)
            assert refused.value.exit_code == 6 and name in refused.value.message
        assert powered_on(site_name) == []
        # the next look goes by what is assigned now
        assert night(site_name, tmp_path / "policy.yaml").exit_code == 0
        assert name not in powered_on(site_name)


@pytest.mark.usefixtures("sites")
class TestLooks:
    @pytest.mark.long
    def test_what_is_assigned_to_another_site_is_not_started(self, tmp_path: Path) -> None:
        from gpuops.execute.runs.assignments import AssignmentStore
        from gpuops.execute.state.state_dir import default_state_dir

        asked("--assign")
        store = AssignmentStore(default_state_dir())
        for each in store.read().values():
            assert not store.change([replace(each, vcenter="other", site="ber")])
        plan = json.loads(night("fra", tmp_path / "policy.yaml").stdout)
        reasons = {each["subject"]: each["reason"] for each in plan["choices"]}
        assert reasons["ml-01"] == "a request across sites: it is assigned to ber"
        assert powered_on("fra") == []

    @pytest.mark.long
    def test_as_text(self, golden: Callable[[str, str], None], tmp_path: Path) -> None:
        policy = tmp_path / "windows.yaml"
        policy.write_text((tmp_path / "policy.yaml").read_text(encoding="utf-8").replace("windows: any", WINDOWS))
        words = ("queue", "--site", "all", "--policy", str(policy), "--at", "2026-11-23 22:00")
        text = run(*words).stdout
        golden("across.txt", text[text.index("requests across sites") :])

    def test_wrong_input(self) -> None:
        refused = run("queue", "--site", "fra", "--assign")
        assert refused.exit_code == 2 and "--site fra may leave one out that runs it" in refused.stderr
        refused = run("queue", "--vcenter", "fra", "--assign")
        assert refused.exit_code == 2 and "--assign is about several sites" in refused.stderr
        refused = run("queue", "--site", "all", "--assign", "--at", "22:00")
        assert refused.exit_code == 2 and "--at shows another night" in refused.stderr


@pytest.mark.long
def test_a_dead_site_is_named_and_gets_nothing(sites: Configured, dead: dict[str, str]) -> None:
    sites(ber=dead)
    found = asked("--assign", code=4)
    assert list(found["unread"]) == ["ber"]
    assert {site for _, site in sites_of(found).values()} <= {"fra", "muc", None}


@pytest.mark.long
def test_where_no_site_is_read_nothing_is_written_down(
    dead: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    policy = tmp_path / "policy.yaml"
    policy.write_text(POLICY, encoding="utf-8")
    _configured({}, tmp_path, monkeypatch)(ber={**dead, "policy": str(policy)}, dus={**dead, "policy": str(policy)})
    assert asked("--assign", code=5)["assigned"] is False
    assert "nothing was written down: no site was read" in run("queue", "--site", "all", "--assign").stdout


@pytest.mark.long
def test_sites_without_a_common_journal_are_shown_and_not_assigned(sites: Configured, dead: dict[str, str]) -> None:
    sites(ber={**dead, "journal_url": "postgresql://gpuops@127.0.0.1:1/gpuops"})
    refused = run("queue", "--site", "all", "--assign")
    assert refused.exit_code == 2 and "ber, fra, muc do not keep their journals in one place" in refused.stderr
    assert asked(code=4)["assigned"] is False
