"""`gpuops broker show`, and the broker in `login test` and `config show`."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from typer.testing import Result

from gpuops.sim.horizon_server import USER_PREFIX
from gpuops.sim.server import SimServer, start
from tests.canary import CANARY
from tests.cli.conftest import Lab, lab_on

Gpuops = Callable[..., Result]


@pytest.fixture(scope="module")
def vdi() -> Iterator[SimServer]:
    with start("vdi", clock="stepped") as server:
        server.serve_horizon()
        yield server


@pytest.fixture
def served(vdi: SimServer, tmp_path: Path, clean: Path) -> Iterator[Lab]:
    with lab_on(vdi, tmp_path, clean) as lab:
        yield lab


def write_config(vdi: SimServer, clean: Path, **keys_of_table: str) -> None:
    """The configuration file of a target `prod` with this broker; `more` are other keys of the broker."""
    broker = vdi.broker
    assert broker is not None
    secret = clean / "password"
    secret.write_text(vdi.password)
    secret.chmod(0o600)
    keys = {**broker, "password_file": str(secret), "ca_file": str(vdi.ca_file), **keys_of_table}
    table = "".join(f"{key} = {json.dumps(value)}\n" for key, value in keys.items() if value)
    target = f'host = "{vdi.url}"\nusername = "{vdi.username}"\npassword_file = "{secret}"\nca_file = "{vdi.ca_file}"\n'
    path = clean / ".config" / "gpuops" / "config.toml"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"[targets.prod]\n{target}[targets.prod.broker]\n{table}", encoding="utf-8")


@pytest.mark.long
def test_pools_with_their_numbers_and_whether_they_can_be_gated(served: Lab) -> None:
    answer = json.loads(served.run("broker", "show", "--output", "json").stdout)
    numbers = {pool["name"]: (pool["machines"], pool["vms"], pool["can_be_gated"]) for pool in answer["pools"]}
    assert numbers == {
        "contractors": (15, 15, True),
        "finance": (4, 4, False),
        "kiosk": (6, 6, False),
        "office": (94, 94, True),
    }
    assert answer["unmatched_machines"] == []
    text = served.run("broker", "show").stdout
    assert "kiosk: no gate: instant clones are always powered on" in text
    assert USER_PREFIX not in text + json.dumps(answer)


@pytest.mark.long
def test_a_login_test_names_the_broker(served: Lab) -> None:
    document = json.loads(served.run("login", "test", "--output", "json").stdout)
    assert document["broker"]["user"] == r"VSPHERE\administrator"


def test_a_target_of_the_file_and_what_is_in_force(vdi: SimServer, clean: Path, gpuops: Gpuops) -> None:
    write_config(vdi, clean)
    assert gpuops("broker", "show", "--vcenter", "prod").exit_code == 0
    settings = json.loads(gpuops("config", "show", "--output", "json").stdout)["targets"]["prod"]
    assert settings["broker.username"]["value"] == r"VSPHERE\administrator"
    assert settings["broker.password"]["value"].startswith("set, from file ")
    assert ":6" in settings["broker.url"]["from"], "the line of its table"
    assert vdi.password not in json.dumps(settings)


def test_a_password_of_the_environment_comes_first(
    vdi: SimServer, clean: Path, gpuops: Gpuops, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_config(vdi, clean)
    monkeypatch.setenv("GPUOPS_BROKER_PASSWORD", CANARY)
    result = gpuops("broker", "show", "--vcenter", "prod")
    assert result.exit_code == 5
    assert "refuses the login of VSPHERE\\administrator" in result.stderr
    assert CANARY not in result.stdout + result.stderr


MISTAKES: dict[str, tuple[dict[str, str], int, str]] = {
    "a password": ({"password": CANARY}, 2, "this file must not contain a password"),
    "an unknown key": ({"verify": "x"}, 2, "targets.prod.broker.verify: unknown key"),
    "no domain": ({"domain": ""}, 2, "targets.prod.broker.domain: is missing"),
    "plain http": ({"url": "http://horizon.example.com"}, 2, "it is not encrypted"),
    "a secret in the address": ({"url": f"https://me:{CANARY}@horizon"}, 2, "it contains a user or a password"),
    "no address": ({"url": "https://"}, 2, "not the address of a broker"),
    "a short thumbprint": ({"thumbprint": "ab"}, 2, "targets.prod.broker.thumbprint is not the SHA-256"),
    "no password anywhere": ({"password_file": ""}, 2, "no password for VSPHERE\\administrator at the broker"),
    "no such file": ({"password_file": "/nowhere"}, 2, "the password file /nowhere cannot be read"),
    "another authority": ({"ca_file": ""}, 5, "issuer that is not trusted here"),
    "not reachable": ({"url": "https://127.0.0.1:1"}, 5, "is not reachable"),
}


@pytest.mark.parametrize("case", MISTAKES)
def test_a_mistake_is_one_clear_line(
    vdi: SimServer, clean: Path, gpuops: Gpuops, monkeypatch: pytest.MonkeyPatch, case: str
) -> None:
    keys_of_table, code, words = MISTAKES[case]
    monkeypatch.setattr("gpuops.broker.horizon.PAUSES_S", ())
    write_config(vdi, clean, **keys_of_table)
    result = gpuops("broker", "show", "--vcenter", "prod")
    assert (result.exit_code, words in result.stderr) == (code, True), result.stderr
    assert CANARY not in result.stdout + result.stderr


def test_config_set_does_not_write_tables(vdi: SimServer, clean: Path, gpuops: Gpuops) -> None:
    write_config(vdi, clean)
    result = gpuops("config", "set", "prod.broker.url", "https://other")
    assert (result.exit_code, "is a table, but gpuops config set" in result.stderr) == (2, True)
