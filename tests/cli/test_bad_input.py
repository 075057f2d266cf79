"""Bad input: one line, the right code, no traceback, and nothing done to the vCenter."""

from __future__ import annotations

import errno
import json
import os
import re
import shlex
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import timedelta
from importlib.resources import files
from pathlib import Path
from typing import Final

import pytest
import yaml
from typer.testing import CliRunner, Result

from gpuops.cli.app import app
from gpuops.clock import machine_time
from gpuops.execute.state.state_dir import default_state_dir
from gpuops.sim.scenario.build import build
from gpuops.sim.server import SimServer
from gpuops.sim.wire import certificates
from tests.cli.conftest import Lab
from tests.sample import mostly_long

Gpuops = Callable[..., Result]
TEMPLATES: Final = Path(__file__).parents[2] / "templates"
SCENARIOS: Final = Path(str(files("gpuops.sim") / "scenarios"))


@dataclass(frozen=True)
class Mistake:
    """A row of `cases/bad-input.yaml`: a command that is wrong, and what is said of it."""

    typed: str
    error: str = ""
    next: str = ""
    exit: int = 2
    quick: bool = False

    def __str__(self) -> str:
        return self.typed

    @property
    def words(self) -> list[str]:
        """The words of the command, with the paths of files that are shipped."""
        return [word.format(templates=TEMPLATES, scenarios=SCENARIOS) for word in shlex.split(self.typed)]

    def require_one_line(self, result: Result) -> None:
        """Fail unless this is said, and nothing else is: no password, and no advice to start a service."""
        message, contained = self.error.removeprefix("... "), self.error.startswith("... ")
        one_line(result, self.exit, message if contained else f"error: {message}", self.next)
        assert contained or result.stderr.startswith(f"error: {message}")
        assert not re.search(r"Value error|Cn4ry|next: .*metrics --listen", result.stderr)


CASES: Final = yaml.safe_load((Path(__file__).parent / "cases" / "bad-input.yaml").read_text(encoding="utf-8"))
AT_THE_LAB: Final = [Mistake(**row) for row in CASES["lab"]]


def one_line(result: Result, exit_code: int, message: str, move: str = "") -> None:
    lines = result.stderr.splitlines()
    assert (result.exit_code, result.stdout) == (exit_code, ""), result.stderr
    assert lines[0].startswith("error: ")
    assert message in lines[0]
    assert all(line.startswith("next: ") for line in lines[1:])
    assert len(lines) <= 2
    assert move in lines[-1]


@pytest.mark.parametrize("mistake", mostly_long(AT_THE_LAB, [row for row in AT_THE_LAB if row.quick]), ids=str)
def test_a_mistake_is_one_line_and_changes_nothing(lab: Lab, mistake: Mistake) -> None:
    mistake.require_one_line(lab.run(*mistake.words))
    assert lab.effects == []


@pytest.mark.parametrize("mistake", [Mistake(**row) for row in CASES["alone"]], ids=str)
def test_a_mistake_without_a_served_vcenter_is_one_line(gpuops: Gpuops, mistake: Mistake) -> None:
    mistake.require_one_line(gpuops(*mistake.words))


@pytest.mark.parametrize(
    ("arguments", "lines"),
    [
        (
            "ml-07 --profile a100-3-20c --count 99",
            ["ml-07: vGPUs that ESXi 8.0.3 allows in one VM: needs 99, 16 there"],
        ),
        (
            "ml-07 --profile l40s-48q",
            [
                "esx-01.lab: does not offer nvidia_l40s-48q",
                "ml-07: no other host offers nvidia_l40s-48q either",
                "next: gpuops inventory --hosts shows the profiles each host offers",
            ],
        ),
        (
            "ml-08 --profile a100d-3-40c",
            [
                "esx-02.lab 0000:86:00.0: grid_a100d-3-40c needs a GPU in MIG mode: needs 1 slot, 0 there",
                "esx-02.lab 0000:8a:00.0: grid_a100d-3-40c needs a GPU in MIG mode: needs 1 slot, 0 there",
                "esx-02.lab: does not offer grid_a100d-3-40c",
                "ml-08: no other host offers grid_a100d-3-40c either",
                "next: gpuops inventory --hosts shows the profiles each host offers",
            ],
        ),
        (
            "ml-07 --label l40s-ml",
            [
                "esx-01.lab: has no device with hardware label l40s-ml",
                "next: gpuops inventory --hosts shows the GPUs in DirectPath I/O and their hardware labels",
                "ml-07: is registered on esx-01.lab, which cannot take it",
                "next: esx-02.lab can take it: use --move cold to move it there while it is off",
            ],
        ),
        (
            "ml-07 --device-group Nvidia:2@grid_a100d-80c%NVLink",
            [
                "esx-01.lab: does not offer device group Nvidia:2@grid_a100d-80c%NVLink (it offers no group)",
                "next: --move cold looks at the other hosts too",
            ],
        ),
        ("golden --profile a40-8q", ["golden: is a template", "next: convert it to a virtual machine, or deploy"]),
    ],
)
def test_what_an_attach_cannot_do_is_refused_line_by_line(lab: Lab, arguments: str, lines: list[str]) -> None:
    """Each line of a refusal names a thing and the reason; the last counts them. Every reason is in `tests/plan`."""
    result = lab.run("attach", "--vm", *arguments.split())
    assert (result.exit_code, result.stderr) == (3, "")
    refusals = [line.strip().removeprefix("refused: ") for line in result.stdout.splitlines()]
    missing = [line for line in lines if not any(line in refusal for refusal in refusals)]
    assert not missing, result.stdout
    assert refusals[-1].startswith("nothing changed: refused for ")
    assert lab.effects == []


@pytest.mark.long
def test_a_refusal_does_not_list_gpus_that_could_never_help(lab: Lab) -> None:
    """esx-02 has GPUs of three models; of two of them no slot could come."""
    refusal = lab.run("attach", "--vm", "ml-08", "--profile", "a100d-80c", "--count", "3").stdout
    assert "needs 3 slots, 2 there" in refusal
    assert "0000:86:00.0" in refusal
    assert "A40" not in refusal
    assert "DirectPath" not in refusal


@pytest.mark.long
def test_a_device_that_another_vm_holds(lab: Lab) -> None:
    assert lab.run("attach", "--vm", "ml-03", "--device", "0000:5e:00.0", "--power", "on").exit_code == 0
    result = lab.run("attach", "--vm", "ml-08", "--device", "0000:5e:00.0")
    assert result.exit_code == 3
    assert "is held by ml-03, which runs" in result.stdout
    assert "next: stop ml-03, or choose another device" in result.stdout
    assert lab.effects == ["PowerOnVM_Task ml-03"]


def test_malformed_policy(lab: Lab, tmp_path: Path) -> None:
    policy = tmp_path / "policy.yaml"
    policy.write_text("version: 1\nname: night\npools: 3\n", encoding="utf-8")
    one_line(lab.run("rotate", "night", "--policy", str(policy)), 2, "pools")
    one_line(lab.run("rotate", "night", "--policy", str(tmp_path / "none.yaml")), 2, "none.yaml")
    assert lab.effects == []


GOOD = """version: 1
name: night
pools:
  - {name: office, parked: true, select: {folder: vdi}, idle: {cpu_below_mhz: 500}, owner: {attribute: gpuops.owner}}
ml: {queue: [{vm: ml-09}]}
"""


@pytest.mark.parametrize(
    ("verb", "old", "new", "message", "move"),
    [
        (
            "plan",
            "parked: true",
            "parked: true, priorty: 2",
            "pools.0.priorty: unknown key",
            "did you mean `priority`?",
        ),
        (
            "night",
            ", owner: {attribute: gpuops.owner}",
            "",
            "pools.0: pool 'office' has no `owner`: the mark that",
            "owner: none",
        ),
        (
            "plan",
            "ml:",
            "window: {opens: 20:00, closes: 20:40, zone: UTC}\nml:",
            "window: the window lasts 40 min, but the return of desktops needs more than 45 min of it",
            "set `opens` earlier, or `back_by` later",
        ),
        ("night", "ml:", "broker: citrix\nml:", "broker: 'citrix' is not supported", "use none or horizon"),
    ],
)
def test_a_policy_that_cannot_be_meant(
    lab: Lab, tmp_path: Path, verb: str, old: str, new: str, message: str, move: str
) -> None:
    policy = tmp_path / "policy.yaml"
    policy.write_text(GOOD.replace(old, new), encoding="utf-8")
    one_line(lab.run("rotate", verb, "--policy", str(policy)), 2, f"policy.yaml: {message}", move)
    assert lab.effects == []


@pytest.mark.long
@pytest.mark.parametrize(
    "command",
    [
        ["attach", "--vm", "ml-07", "--profile", "a100-3-20c"],
        ["capacity"],
        ["place", "--profile", "a100-3-20c", "--vcpu", "4", "--memory", "8GiB"],
    ],
)
def test_a_saved_inventory_and_a_shell_on_the_hosts_exclude_each_other(
    gpuops: Gpuops, saved_lab: Path, command: list[str]
) -> None:
    """What hosts tell now is not true of a snapshot that was saved."""
    refusal = gpuops(*command, "--inventory", str(saved_lab), "--host-shell", "ssh")
    one_line(refusal, 2, "--host-shell and --inventory exclude each other", "remove one of the two options")


@pytest.mark.parametrize("command", [["attach", "--vm", "ml-07", "--profile", "x"], ["capacity"], ["inventory"]])
@pytest.mark.parametrize(
    "options", [["--vcenter", "sim:lab"], ["--ca-file", "ca.pem"], ["--insecure"], ["--password-stdin"]]
)
def test_a_saved_inventory_and_a_connection_exclude_each_other(
    gpuops: Gpuops, saved_lab: Path, command: list[str], options: list[str]
) -> None:
    """Nothing is ignored in silence: a user who names both expects something that will not happen."""
    message = f"--inventory and {options[0]} exclude each other"
    one_line(gpuops(*command, "--inventory", str(saved_lab), *options), 2, message, "remove one of the two options")
    one_line(gpuops(*options, *command, "--inventory", str(saved_lab)), 2, message)


@pytest.mark.long
def test_the_environments_vcenter_is_no_word_against_a_saved_inventory(
    gpuops: Gpuops, saved_lab: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GPUOPS_VCENTER", "https://vc.example.com")
    assert gpuops("inventory", "--inventory", str(saved_lab)).exit_code == 0


class TestConnection:
    """vCenter down, a wrong password, an untrusted certificate."""

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

    @pytest.mark.long
    def test_govcs_variables(self, gpuops: Gpuops, lab: Lab) -> None:
        url = lab.server.url.replace("https://", f"https://administrator%40vsphere.local:{lab.server.password}@")
        result = gpuops("inventory", env={"GOVC_URL": url, "GOVC_TLS_CA_CERTS": str(lab.server.ca_file)})
        assert (result.exit_code, result.stderr) == (0, "")

    def test_down(self, gpuops: Gpuops, environ: dict[str, str], lab: Lab, tmp_path: Path) -> None:
        ca_file = Path(shutil.copy(str(lab.server.ca_file), tmp_path / "ca.pem"))
        lab.server.close()
        one_line(
            gpuops("inventory", env={**environ, "GPUOPS_CA_FILE": str(ca_file)}), 5, f"127.0.0.1:{lab.server.port}"
        )

    @pytest.mark.long
    def test_wrong_password(self, gpuops: Gpuops, environ: dict[str, str], lab: Lab) -> None:
        result = gpuops("inventory", env={**environ, "GPUOPS_PASSWORD": "Cn4ry&<"})
        one_line(result, 5, "administrator@vsphere.local")
        assert "Cn4ry" not in result.output
        assert lab.effects == []

    def test_no_password_and_nobody_to_ask(self, gpuops: Gpuops, environ: dict[str, str]) -> None:
        result = gpuops("inventory", env={**environ, "GPUOPS_PASSWORD": ""})
        one_line(result, 2, "no password", "--password-file")

    @pytest.mark.long
    def test_password_from_stdin(self, gpuops: Gpuops, environ: dict[str, str], lab: Lab) -> None:
        unset = {**environ, "GPUOPS_PASSWORD": ""}
        result = gpuops("inventory", "--password-stdin", env=unset, input=f"{lab.server.password}\n")
        assert result.exit_code == 0
        one_line(gpuops("inventory", "--password-stdin", env=unset, input=""), 2, "stdin is empty")

    @pytest.mark.long
    def test_password_file_that_others_can_read(
        self, gpuops: Gpuops, environ: dict[str, str], lab: Lab, tmp_path: Path
    ) -> None:
        path = tmp_path / "password"
        path.write_text(lab.server.password, encoding="utf-8")
        path.chmod(0o644)
        unset = {**environ, "GPUOPS_PASSWORD": ""}
        for options in (["--password-file", str(path)], []):
            by_variable = {} if options else {"GPUOPS_PASSWORD_FILE": str(path)}
            result = gpuops("inventory", *options, env={**unset, **by_variable})
            one_line(result, 2, f"{path} can be read or written by others (mode 644)", f"chmod 600 {path}")
        path.chmod(0o600)
        assert gpuops("inventory", "--password-file", str(path), env=unset).exit_code == 0

    @pytest.mark.long
    @pytest.mark.parametrize(
        ("content", "reason"),
        [
            ("junk", "contains no PEM certificate"),
            (None, f"cannot be read: {os.strerror(errno.ENOENT)}"),
            ("", "contains no PEM"),
        ],
    )
    def test_bad_ca_file(
        self, gpuops: Gpuops, environ: dict[str, str], lab: Lab, tmp_path: Path, content: str | None, reason: str
    ) -> None:
        path = tmp_path / "ca.pem"
        if content is not None:
            path.write_text(content, encoding="utf-8")
        one_line(gpuops("inventory", "--ca-file", str(path), env=environ), 5, f"CA file {path} {reason}", "--ca-file")
        assert lab.effects == []

    @pytest.mark.parametrize(("content", "move"), [(None, "name a file"), ("", "the password and nothing else")])
    def test_password_file_without_a_password(
        self, gpuops: Gpuops, environ: dict[str, str], tmp_path: Path, content: str | None, move: str
    ) -> None:
        path = tmp_path / "password"
        if content is not None:
            path.touch(0o600)
        one_line(gpuops("inventory", "--password-file", str(path), env=environ), 2, str(path), move)

    @pytest.mark.long
    def test_untrusted(self, gpuops: Gpuops, environ: dict[str, str], lab: Lab) -> None:
        one_line(gpuops("inventory", env={**environ, "GPUOPS_CA_FILE": ""}), 5, "certificate", "--ca-file")
        assert lab.effects == []

    @pytest.mark.long
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

    @pytest.mark.long
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
    certificate_files = certificates.create(
        tmp_path, now=machine_time() - timedelta(days=30), validity=timedelta(days=7)
    )
    with SimServer(build("lab", seed=0), server_certificates=certificate_files) as server:
        yield server


@pytest.mark.long
def test_expired_certificate(expired: SimServer) -> None:
    environ = {
        "GPUOPS_VCENTER": expired.url,
        "GPUOPS_USERNAME": expired.username,
        "GPUOPS_PASSWORD": expired.password,
        "GPUOPS_CA_FILE": str(expired.ca_file),
    }
    one_line(CliRunner().invoke(app, ["inventory"], env=environ), 5, "expired")
    assert len(expired.world.ledger) == 0


def test_a_demo_of_no_scenario_is_refused_before_it_begins() -> None:
    one_line(
        CliRunner().invoke(app, ["demo", "--scenario", "nosuch"]),
        2,
        "no scenario 'nosuch'",
        "accelerators, fleet, lab, scattered, stacks, supervisor, training, vdi",
    )
