"""`gpuops config init|show|set`: a first file, what is in force and why, one key changed with its comments kept."""

from __future__ import annotations

import json
import stat
import tomllib
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from gpuops.cli.app import app

FILLED = ("--target", "gpu", "--address", "vc.lab", "--username", "me@lab")


def run(*words: str) -> Result:
    return CliRunner().invoke(app, ["config", *words])


@pytest.fixture
def path(clean: Path) -> Path:
    return clean / ".config" / "gpuops" / "config.toml"


@pytest.fixture
def filled(path: Path) -> Path:
    assert run("init", *FILLED).exit_code == 0
    return path


def test_the_template_is_written_with_its_comments_for_this_user_alone(path: Path) -> None:
    result = run("init")
    assert result.exit_code == 0, result.output
    assert result.stdout.startswith(f"{path}: written\n")
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    assert "# credential = " in path.read_text()
    assert list(path.parent.iterdir()) == [path], "nothing is left beside it"


def test_the_first_target_is_filled_in(filled: Path) -> None:
    text = filled.read_text()
    config = tomllib.loads(text)
    assert config["default"] == "gpu"
    assert config["targets"]["gpu"] == {"host": "vc.lab", "port": 443, "username": "me@lab", "verify": True}
    assert '# password_file = "/etc/gpuops/prod.password"' in text, "an example is no setting"


def test_the_first_target_may_have_the_name_of_the_templates_second(path: Path) -> None:
    assert run("init", "--target", "lab", "--address", "vc.lab").exit_code == 0
    config = tomllib.loads(path.read_text())
    assert (config["default"], config["targets"]) == ("lab", {"lab": {"host": "vc.lab", "port": 443, "verify": True}})


def test_a_file_that_is_there_is_left_as_it_is(path: Path) -> None:
    path.parent.mkdir(parents=True)
    path.write_text("# mine\n", encoding="utf-8")
    result = run("init", *FILLED)
    assert (result.exit_code, path.read_text()) == (2, "# mine\n")
    assert "already exists, and was not changed" in result.stderr
    assert "gpuops config set" in result.stderr
    assert list(path.parent.iterdir()) == [path]


def test_a_link_that_leads_nowhere_is_something_too(path: Path) -> None:
    path.parent.mkdir(parents=True)
    path.symlink_to("nowhere")
    assert run("init").exit_code == 2
    assert path.is_symlink()


def test_another_place_may_be_named(tmp_path: Path, path: Path) -> None:
    other_file = tmp_path / "site" / "gpuops.toml"
    assert run("init", "--config", str(other_file)).exit_code == 0
    assert other_file.is_file()
    assert not path.exists()


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (("--target", "prod"), "--address is missing"),
        (("--target", "a.b", "--address", "vc"), "'a.b' cannot name a target"),
        (("--address", "https://vc/other"), "'https://vc/other' is not the address of a vCenter"),
        (("--address", "https://me:s3cret@vc"), "the address of a target must not contain a password"),
        (("--address", ""), "host: should not be empty"),
    ],
)
def test_what_cannot_be_meant_writes_nothing(path: Path, words: tuple[str, ...], reason: str) -> None:
    result = run("init", *words)
    assert result.exit_code == 2, result.output
    assert reason in result.stderr
    assert "s3cret" not in result.output
    assert not path.exists()


def test_what_is_in_force_is_said_with_its_source(filled: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GPUOPS_USERNAME", "other@lab")
    monkeypatch.setenv("GPUOPS_PASSWORD", "s3cret")
    document = json.loads(run("show", "--proxy", "proxy:3128", "--output", "json").stdout)
    settings = document["targets"]["gpu"]
    line = filled.read_text().splitlines().index('host = "vc.lab"') + 1
    assert settings["host"] == {"value": "vc.lab", "from": f"{filled}:{line}"}
    assert settings["username"] == {"value": "other@lab", "from": "GPUOPS_USERNAME"}
    assert settings["password"] == {"value": "set", "from": "GPUOPS_PASSWORD"}
    assert settings["proxy"] == {"value": "proxy:3128", "from": "--proxy"}
    assert settings["reader"] == {"value": "auto", "from": "default"}
    assert document["targets"]["lab"]["host"]["value"] == "sim:lab"
    assert "s3cret" not in run("show").output


def test_without_a_file_the_next_move_is_said(path: Path) -> None:
    result = run("show")
    assert result.exit_code == 0, result.output
    assert f"{path}: does not exist" in result.stdout
    assert "gpuops config init" in result.stdout


def test_a_vcenter_that_is_no_target_is_shown_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GOVC_URL", "https://me:s3cret@vc.example.com:8443/sdk")
    targets = json.loads(run("show", "--output", "json").stdout)["targets"]
    [(_, settings)] = targets.items()
    assert settings["host"] == {"value": "vc.example.com", "from": "GOVC_URL"}
    assert settings["port"] == {"value": "8443", "from": "GOVC_URL"}
    assert settings["password"]["value"] == "set"
    assert "s3cret" not in json.dumps(targets)


def test_one_key_is_changed_and_every_comment_stays(filled: Path) -> None:
    before = filled.read_text()
    filled.chmod(0o640)
    result = run("set", "gpu.port", "8443")
    assert result.stdout == f"{filled}: gpu.port is 8443 (was 443)\n"
    assert filled.read_text() == before.replace("port = 443\n", "port = 8443\n")
    assert stat.S_IMODE(filled.stat().st_mode) == 0o640
    assert run("set", "gpu.port", "443").exit_code == 0
    assert filled.read_text() == before


@pytest.mark.parametrize(
    ("key", "value", "stands"),
    [
        ("gpu.verify", "false", ("verify", False)),
        ("gpu.password_file", "/etc/x", ("password_file", "/etc/x")),
        ("gpu.proxy", "proxy:1", ("proxy", "proxy:1")),
        ("gpu.notify", "env:CHAT file:/etc/x", ("notify", ["env:CHAT", "file:/etc/x"])),
        ("gpu.username", "", ("username", None)),
    ],
)
def test_a_value_stands_as_what_it_is(filled: Path, key: str, value: str, stands: tuple[str, object]) -> None:
    comments = [line for line in filled.read_text().splitlines() if line.startswith("#")]
    assert run("set", key, value).exit_code == 0
    text = filled.read_text()
    assert tomllib.loads(text)["targets"]["gpu"].get(stands[0]) == stands[1]
    assert [line for line in text.splitlines() if line.startswith("#")] == comments


def test_another_target_and_the_default(filled: Path) -> None:
    assert run("set", "other.host", "vc2.lab").exit_code == 0
    assert run("set", "default", "other").exit_code == 0
    config = tomllib.loads(filled.read_text())
    assert (config["default"], config["targets"]["other"]) == ("other", {"host": "vc2.lab"})


def test_a_link_to_the_file_stays_one(filled: Path, tmp_path: Path) -> None:
    link = tmp_path / "link.toml"
    link.symlink_to(filled)
    assert run("set", "gpu.port", "1", "--config", str(link)).exit_code == 0
    assert link.is_symlink()
    assert "port = 1\n" in filled.read_text()


@pytest.mark.parametrize(
    ("key", "value", "reason"),
    [
        ("gpu.password", "s3cret", "every user of this machine can read a command line"),
        ("gpu.passwort", "s3cret", "'passwort' is not a key of a target; did you mean"),
        ("gpu.usrname", "x", "did you mean username?"),
        ("username", "x", "is neither default nor TARGET.KEY"),
        ("gpo.port", "1", "no target 'gpo'"),
        ("gpu.port", "99999", "targets.gpu.port: should be 65535 or less\n"),
        ("gpu.port", "web", "targets.gpu.port: should be a whole number\nnext: gpuops help targets\n"),
        ("gpu.verify", "perhaps", "targets.gpu.verify: should be true or false\n"),
        ("gpu.host", "vc one", "'vc one' is not the address of a vCenter\n"),
        ("gpu.thumbprint", "abc", "is not the SHA-256 of a certificate"),
        ("gpu.host", "", "targets.gpu.host"),
        ("gpu.host", "https://me:s3cret@vc", "the address of a target must not contain a password"),
        ("gpu.journal_url", "postgresql://me:s3cret@db/gpuops", "this file must not contain a password"),
        ("default", "nobody", "there is no [targets.nobody]"),
    ],
)
def test_what_no_command_could_use_is_refused(filled: Path, key: str, value: str, reason: str) -> None:
    before = filled.read_text()
    result = run("set", key, value)
    assert result.exit_code == 2, result.output
    assert reason in result.stderr
    assert "s3cret" not in result.output
    assert len([line for line in result.stderr.splitlines() if line.startswith("error: ")]) == 1
    assert filled.read_text() == before


@pytest.mark.parametrize(
    "text", ["[targets", "targets = 3\n", "[targets.gpu]\nhost = 'a'\nown = 1\n", "a = " + "[" * 9999]
)
def test_a_file_that_is_none_is_not_touched(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True)
    path.write_text(text, encoding="utf-8")
    result = run("set", "gpu.host", "vc.lab")
    assert result.exit_code == 2, result.output
    assert str(path) in result.stderr
    assert path.read_text(encoding="utf-8") == text


def test_no_file_is_no_place_for_a_key() -> None:
    result = run("set", "gpu.host", "vc.lab")
    assert result.exit_code == 2
    assert "gpuops config init writes it" in result.stderr
