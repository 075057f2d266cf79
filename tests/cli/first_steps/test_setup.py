"""`gpuops setup`: typed at a terminal against a served vCenter, whose certificate no authority vouches for."""

from __future__ import annotations

import fcntl
import hashlib
import os
import pty
import re
import select
import ssl
import struct
import sys
import termios
import tomllib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest
from typer.testing import CliRunner

from gpuops.cli.app import app
from gpuops.clock import passed_s
from gpuops.sim.server import SimServer, start

LIMIT_S = 60


@pytest.fixture
def server() -> Iterator[SimServer]:
    with start("lab", clock="stepped") as running:
        yield running


def type_answers(answers: Sequence[tuple[str, str]], *options: str) -> tuple[int, str]:
    """Run `gpuops setup` at a terminal, and type each answer after its question. Its exit code, and all it showed."""
    pid, terminal = pty.fork()
    if pid == 0:
        for name in ("COLUMNS", "LINES"):  # readline, which pytest imports, puts them where programs see them
            os.environ.pop(name, None)
        os.environ.update(TERM="dumb", LC_ALL="C.UTF-8", PYTHONUTF8="1")
        os.execv(sys.executable, [sys.executable, "-m", "gpuops", "setup", *options])
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 50, 200, 0, 0))
    screen, begin, waiting = "", passed_s(), list(answers)
    try:
        start_of_answer = 0
        while passed_s() - begin < LIMIT_S:
            if not select.select([terminal], [], [], 1)[0]:
                continue
            try:
                screen += os.read(terminal, 65536).decode()
            except OSError:  # the process has ended
                break
            if waiting and waiting[0][0] in screen[start_of_answer:] and screen.endswith(": "):
                start_of_answer = len(screen)
                os.write(terminal, f"{waiting.pop(0)[1]}\n".encode())
        status = os.waitpid(pid, 0)[1]
    finally:
        os.close(terminal)
    assert waiting == [], screen
    return os.waitstatus_to_exitcode(status), screen.replace("\r", "")


def home_files(home: Path) -> dict[str, Path]:
    return {path.name: path for path in (home / ".config").rglob("*") if path.is_file()}


def good(server: SimServer, *, trust: str = "y", roles: str = "n") -> list[tuple[str, str]]:
    return [
        ("Address of the vCenter", f"localhost:{server.port}"),
        ("Trust this certificate", trust),
        ("Name of this vCenter", "lab7"),
        ("Account for gpuops", server.username),
        ("Password of", server.password),
        ("Make the role", roles),
    ]


def test_a_vcenter_is_set_up_and_works(server: SimServer, clean: Path) -> None:
    code, screen = type_answers(good(server))
    assert code == 0, screen
    presented = ssl.PEM_cert_to_DER_cert(ssl.get_server_certificate(("127.0.0.1", server.port)))
    sha256 = hashlib.sha256(presented).hexdigest()
    assert "authority  commonName=gpuops simulated vCenter, ephemeral CA" in screen
    assert ":".join(re.findall("..", sha256.upper())) in re.sub(r"\s", "", screen)
    assert server.password not in screen
    files = home_files(clean)
    assert set(files) == {"config.toml", "lab7.password", "lab7.pem"}
    assert {path.stat().st_mode & 0o777 for path in files.values()} == {0o600}
    configuration = tomllib.loads(files["config.toml"].read_text())
    assert configuration["default"] == "lab7"
    target = configuration["targets"]["lab7"]
    assert (target["host"], target["port"], target["thumbprint"]) == ("localhost", server.port, sha256)
    commands = re.findall(r"^  (gpuops .*)$", screen, re.MULTILINE)
    assert [command.split()[1] for command in commands] == ["inventory", "attach", "doctor"]
    assert list(server.world.sessions) == []
    for command in commands:
        result = CliRunner().invoke(app, command.split()[1:])
        assert (result.exit_code, "not verified" in result.output) == (0, False), result.output
    assert list(server.world.ledger) == []


def test_wrong_answers_are_asked_again(server: SimServer, clean: Path) -> None:
    answers = good(server)
    answers[0:0] = [("Address of the vCenter", "sim:lab"), ("Address of the vCenter", "https://u:p@vc.example.com")]
    answers[4:4] = [
        ("Name of this vCenter", "no name"),
    ]
    answers[6:6] = [("Account for gpuops", server.username), ("Password of", "wrong")]
    code, screen = type_answers(answers)
    assert code == 0, screen
    for text in (
        "sim:lab needs no setup",
        "an address must not contain a password",
        "cannot name a vCenter",
        "refused",
    ):
        assert text in screen, screen


def test_a_certificate_that_is_not_trusted_leaves_nothing(server: SimServer, clean: Path) -> None:
    code, screen = type_answers(good(server, trust="n")[:2])
    assert (code, "nothing was written" in screen, home_files(clean)) == (3, True, {})


@pytest.mark.long
def test_a_login_that_is_refused_three_times_leaves_nothing(server: SimServer, clean: Path) -> None:
    wrong = [("Account for gpuops", "nobody@vsphere.local"), ("Password of", "x")]
    code, screen = type_answers([*good(server)[:3], *wrong, *wrong, *wrong])
    assert (code, home_files(clean)) == (5, {}), screen


@pytest.mark.long
def test_the_end_of_the_answers_leaves_nothing(server: SimServer, clean: Path) -> None:
    code, screen = type_answers([*good(server)[:3], ("Account for gpuops", "\x04")])
    assert code in (2, 3, 5), screen
    assert home_files(clean) == {}
    assert "Traceback" not in screen


@pytest.mark.long
def test_roles_are_made_after_a_yes(server: SimServer, clean: Path) -> None:
    code, screen = type_answers([*good(server, roles="y"), ("Account of an administrator", "")])
    assert code == 0 and "5 roles written" in screen, screen
    assert "--dry-run" in screen


@pytest.mark.long
def test_roles_that_could_not_be_made_leave_the_rest_as_it_is(server: SimServer, clean: Path) -> None:
    administrator = [("Account of an administrator", "root@vsphere.local"), ("Password of root", "x")]
    code, screen = type_answers([*good(server, roles="y"), *administrator])
    assert code == 0, screen
    assert "not all roles were made: " in screen and "gpuops roles apply --file" in screen
    assert "lab7.password" in home_files(clean)


@pytest.mark.long
def test_a_certificate_of_a_known_authority_is_not_asked_about(
    server: SimServer, clean: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", str(server.ca_file))
    code, screen = type_answers([good(server)[0], *good(server)[2:]])
    assert code == 0 and "trusted    yes" in screen, screen
    assert set(home_files(clean)) == {"config.toml", "lab7.password"}


@pytest.mark.long
@pytest.mark.parametrize("address", ["127.0.0.2", "127.0.0.1:1", "no such host", "http://vc.example.com"])
def test_an_address_that_cannot_be_used_leaves_nothing(server: SimServer, clean: Path, address: str) -> None:
    wrong = f"{address}:{server.port}" if address == "127.0.0.2" else address
    code, screen = type_answers([("Address", wrong)] * 3)
    assert code in (2, 5) and home_files(clean) == {}, screen
    assert "Traceback" not in screen


@pytest.mark.long
def test_a_relative_configuration_file_names_the_other_files_from_the_root(
    server: SimServer, clean: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GPUOPS_CONFIG", "site.toml")
    monkeypatch.chdir(clean)
    code, screen = type_answers(good(server))
    assert code == 0, screen
    assert f'password_file = "{clean}/lab7.password"' in (clean / "site.toml").read_text()


@pytest.mark.long
def test_a_second_vcenter_is_added_and_the_first_stays_the_default(server: SimServer, clean: Path) -> None:
    folder = clean / ".config" / "gpuops"
    folder.mkdir(parents=True)
    (folder / "config.toml").write_text('default = "one"\n[targets.one]  # mine\nhost = "vc.example.com"\n')
    (folder / "lab8.password").write_text("x")
    answers = good(server)
    answers[2:2] = [("Name of this vCenter", "one"), ("Name of this vCenter", "lab8")]
    code, screen = type_answers(answers)
    assert code == 0, screen
    assert "already has a vCenter 'one'" in screen and "lab8.password already exists" in screen
    text = (folder / "config.toml").read_text()
    assert text.startswith('default = "one"\n[targets.one]  # mine\n') and "[targets.lab7]" in text
    assert "gpuops inventory --vcenter lab7\n" in screen


def test_without_a_terminal_it_names_what_is_missing(gpuops: Callable[..., object], clean: Path) -> None:
    result = CliRunner().invoke(app, ["setup", "--address", "vc.example.com"])
    assert result.exit_code == 2
    assert "missing: --username, the password\nnext: run it at a terminal; or gpuops config init" in result.stderr
    assert home_files(clean) == {}
