"""Bad input: one line, the right code, no traceback, and nothing done to the vCenter."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from gpuops.cli.app import app
from gpuops.execute.state import default_state_dir
from gpuops.sim import certificates
from gpuops.sim.scenario import build
from gpuops.sim.server import SimServer
from tests.cli.conftest import Lab

Gpuops = Callable[..., Result]


def one_line(result: Result, exit_code: int, said: str, move: str = "") -> None:
    lines = result.stderr.splitlines()
    assert (result.exit_code, result.stdout) == (exit_code, ""), result.stderr
    assert lines[0].startswith("error: ")
    assert said in lines[0]
    assert len(lines) <= 2
    assert move in lines[-1]


@pytest.mark.parametrize(
    ("arguments", "said", "move"),
    [
        (["attach", "--vm", "ml-70", "--profile", "a100-3-20c"], "did you mean ml-0", "inventory --vms"),
        (["attach", "--vm", "twin", "--profile", "a100-3-20c"], "/lab-dc/vm/misc/a/twin", "path"),
        (["attach", "--vm", "ml-07", "--profile", "a100-3-21c"], "grid_a100-3-20c", "gpuops inventory"),
        (["detach", "--vm", "ml-70"], "did you mean ml-0", "inventory --vms"),
        (["inventory", "--host", "esx-99"], "no host 'esx-99'", "gpuops inventory"),
        (["inventory", "--profile", "a41-8q"], "a41-8q", "gpuops inventory"),
    ],
)
def test_names_that_mean_nothing_or_too_much(lab: Lab, arguments: list[str], said: str, move: str) -> None:
    one_line(lab.run(*arguments), 2, said, move)
    assert lab.effects == []


def test_malformed_policy(lab: Lab, tmp_path: Path) -> None:
    policy = tmp_path / "policy.yaml"
    policy.write_text("version: 1\nname: night\npools: 3\n", encoding="utf-8")
    one_line(lab.run("rotate", "night", "--policy", str(policy)), 2, "pools")
    one_line(lab.run("rotate", "night", "--policy", str(tmp_path / "none.yaml")), 2, "none.yaml")
    assert lab.effects == []


@pytest.mark.parametrize("command", [["attach", "--vm", "ml-07", "--profile", "x"], ["capacity"], ["inventory"]])
@pytest.mark.parametrize(
    "other", [["--vcenter", "sim:lab"], ["--ca-file", "ca.pem"], ["--insecure"], ["--password-stdin"]]
)
def test_a_saved_inventory_and_a_connection_exclude_each_other(
    gpuops: Gpuops, tmp_path: Path, command: list[str], other: list[str]
) -> None:
    """Nothing is ignored in silence: whoever names both means something that will not happen."""
    saved = str(tmp_path / "fleet.json")
    assert gpuops("inventory", "--vcenter", "sim:lab", "--save", saved).exit_code == 0
    said = f"--inventory and {other[0]} exclude each other"
    one_line(gpuops(*command, "--inventory", saved, *other), 2, said, "leave one of them out")
    one_line(gpuops(*other, *command, "--inventory", saved), 2, said)


def test_the_environments_vcenter_is_no_word_against_a_saved_inventory(
    gpuops: Gpuops, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    saved = str(tmp_path / "fleet.json")
    gpuops("inventory", "--vcenter", "sim:lab", "--save", saved)
    monkeypatch.setenv("GPUOPS_VCENTER", "https://vc.example.com")
    assert gpuops("inventory", "--inventory", saved).exit_code == 0


class TestConnection:
    """vCenter down, a wrong password, a certificate nobody can trust."""

    @pytest.fixture
    def environ(self, lab: Lab) -> dict[str, str]:
        server = lab.server
        return {
            "GPUOPS_VCENTER": server.url,
            "GPUOPS_USERNAME": server.username,
            "GPUOPS_PASSWORD": server.password,
            "GPUOPS_CA_FILE": str(server.ca_file),
        }

    def test_from_the_environment(self, gpuops: Gpuops, environ: dict[str, str]) -> None:
        result = gpuops("inventory", env=environ)
        assert (result.exit_code, result.stderr) == (0, "")

    def test_govcs_variables(self, gpuops: Gpuops, lab: Lab) -> None:
        url = lab.server.url.replace("https://", f"https://administrator%40vsphere.local:{lab.server.password}@")
        result = gpuops("inventory", env={"GOVC_URL": url, "GOVC_TLS_CA_CERTS": str(lab.server.ca_file)})
        assert (result.exit_code, result.stderr) == (0, "")

    def test_down(self, gpuops: Gpuops, environ: dict[str, str], lab: Lab, tmp_path: Path) -> None:
        kept = Path(shutil.copy(str(lab.server.ca_file), tmp_path / "ca.pem"))
        lab.server.close()
        one_line(gpuops("inventory", env={**environ, "GPUOPS_CA_FILE": str(kept)}), 5, f"127.0.0.1:{lab.server.port}")

    def test_wrong_password(self, gpuops: Gpuops, environ: dict[str, str], lab: Lab) -> None:
        result = gpuops("inventory", env={**environ, "GPUOPS_PASSWORD": "Cn4ry&<"})
        one_line(result, 5, "administrator@vsphere.local")
        assert "Cn4ry" not in result.output
        assert lab.effects == []

    def test_no_password_and_nobody_to_ask(self, gpuops: Gpuops, environ: dict[str, str]) -> None:
        result = gpuops("inventory", env={**environ, "GPUOPS_PASSWORD": ""})
        one_line(result, 5, "no password", "--password-file")

    def test_password_from_stdin(self, gpuops: Gpuops, environ: dict[str, str], lab: Lab) -> None:
        unset = {**environ, "GPUOPS_PASSWORD": ""}
        result = gpuops("inventory", "--password-stdin", env=unset, input=f"{lab.server.password}\n")
        assert result.exit_code == 0
        one_line(gpuops("inventory", "--password-stdin", env=unset, input=""), 2, "nothing came on stdin")

    def test_password_file_that_others_can_read(
        self, gpuops: Gpuops, environ: dict[str, str], lab: Lab, tmp_path: Path
    ) -> None:
        path = tmp_path / "password"
        path.write_text(lab.server.password, encoding="utf-8")
        path.chmod(0o644)
        unset = {**environ, "GPUOPS_PASSWORD": ""}
        for given in (["--password-file", str(path)], []):
            by_variable = {} if given else {"GPUOPS_PASSWORD_FILE": str(path)}
            result = gpuops("inventory", *given, env={**unset, **by_variable})
            one_line(result, 2, f"{path} can be read or written by others (mode 644)", f"chmod 600 {path}")
        path.chmod(0o600)
        assert gpuops("inventory", "--password-file", str(path), env=unset).exit_code == 0

    def test_untrusted(self, gpuops: Gpuops, environ: dict[str, str], lab: Lab) -> None:
        one_line(gpuops("inventory", env={**environ, "GPUOPS_CA_FILE": ""}), 5, "certificate", "--ca-file")
        assert lab.effects == []

    def test_unverified_is_done_with_a_red_line_and_an_audit_entry(
        self, gpuops: Gpuops, environ: dict[str, str], clean: Path
    ) -> None:
        result = gpuops("inventory", "--insecure", env={**environ, "GPUOPS_CA_FILE": ""})
        assert result.exit_code == 0
        assert "is not verified (--insecure)" in result.stderr
        log = default_state_dir({"HOME": str(clean)}) / "audit.jsonl"
        (entry,) = [json.loads(line) for line in log.read_text(encoding="utf-8").splitlines()]
        assert (entry["event"], entry["said_by"]) == ("certificate-not-verified", "--insecure")
        assert environ["GPUOPS_PASSWORD"] not in str(entry)

    def test_unverified_by_a_variable_is_said_and_audited_too(
        self, gpuops: Gpuops, environ: dict[str, str], clean: Path
    ) -> None:
        result = gpuops("inventory", env={**environ, "GPUOPS_CA_FILE": "", "VMWARE_VALIDATE_CERTS": "no"})
        assert "is not verified (VMWARE_VALIDATE_CERTS)" in result.stderr
        assert (default_state_dir({"HOME": str(clean)}) / "audit.jsonl").exists()

    def test_an_unattended_rotation_is_not_done_unverified(
        self, gpuops: Gpuops, environ: dict[str, str], lab: Lab, clean: Path
    ) -> None:
        unverified = {**environ, "GPUOPS_CA_FILE": ""}
        result = gpuops("rotate", "day", "--insecure", "--yes", env=unverified)
        one_line(result, 3, "unattended", "verify = false")
        assert lab.effects == []
        configuration = clean / "config.toml"
        configuration.write_text(
            f"[targets.old]\nhost = '{lab.server.url}'\nverify = false\nusername = '{lab.server.username}'\n",
            encoding="utf-8",
        )
        named = {"GPUOPS_CONFIG": str(configuration), "GPUOPS_PASSWORD": lab.server.password}
        result = gpuops("rotate", "status", "--vcenter", "old", env=named)
        assert result.exit_code == 0
        assert "targets.old.verify" in result.stderr


@pytest.fixture
def expired(tmp_path: Path) -> Iterator[SimServer]:
    made = certificates.create(tmp_path, now=datetime.now(UTC) - timedelta(days=30), validity=timedelta(days=7))  # noqa: TID251
    with SimServer(build("lab", seed=0), made=made) as server:
        yield server


def test_expired_certificate(expired: SimServer) -> None:
    environ = {
        "GPUOPS_VCENTER": expired.url,
        "GPUOPS_USERNAME": expired.username,
        "GPUOPS_PASSWORD": expired.password,
        "GPUOPS_CA_FILE": str(expired.ca_file),
    }
    one_line(CliRunner().invoke(app, ["inventory"], env=environ), 5, "expired")
    assert len(expired.world.ledger) == 0
