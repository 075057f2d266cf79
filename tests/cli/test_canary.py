"""A password that must be seen nowhere: not printed, not in a traceback, not in a file, not in a command line."""

from __future__ import annotations

import logging
import os
import resource
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterator
from importlib.resources import files
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

import pytest
from typer.main import get_command
from typer.testing import CliRunner, Result

from gpuops.cli.app import app
from gpuops.sim.scenario.build import build
from gpuops.sim.server import SimServer
from tests.canary import CANARY, require_hidden, require_no_file

ROLES: Final = shlex.quote(str(Path(__file__).resolve().parents[2] / "templates" / "roles" / "night.yaml"))
CLUSTER: Final = shlex.quote(str(Path(__file__).resolve().parents[2] / "templates" / "cluster.yaml"))
POOL: Final = shlex.quote(str(Path(__file__).resolve().parents[2] / "templates" / "pool.yaml"))
SITE: Final = shlex.quote(str(Path(__file__).resolve().parents[2] / "templates" / "site.yaml"))
POLICY: Final = shlex.quote(str(files("gpuops.sim") / "scenarios" / "lab-policy.yaml"))
JOBS: Final = shlex.quote(str(Path(__file__).resolve().parents[2] / "templates" / "jobs.yaml"))
SPARE_POLICY: Final = shlex.quote(str(files("gpuops.sim") / "scenarios" / "lab-spare-policy.yaml"))
SWEPT: Final = (
    "inventory",
    "login test",
    "broker show",
    "inventory --vms --output json",
    "inventory --output yaml",
    "capacity",
    "idle",
    "size --profile a40-8q",
    "measure --template golden --profile a40-8q --counts 1 --guest-command true --host esx-02.lab --yes",
    "what-if --add-hosts 1xL40S:8 --arrivals 2 --seeds 1",
    "diagnose --vm ml-07",
    "diagnose confirm d-0123456789",
    "diagnose correct d-0123456789 none",
    "top --show vms",
    "doctor",
    "report",
    "readiness",
    "guest check --vm vdi-*",
    "cluster run train -- true",
    "cluster bench train",
    "bundle --dry-run",
    "bundle --yes --save bundle.zip",
    "attach --vm ml-07 --profile a100-3-20c",
    "attach --vm ml-70 --profile a100-3-20c",
    "attach --vm ml-07 --profile l40s-48q --output json",
    "detach --vm ml-07 --all",
    f"diff --file {SITE}",
    f"apply --file {SITE}",
    f"assert --file {SITE} --output json",
    f"drift --file {SITE} --once",
    "export",
    "place --profile a100-3-20c --vcpu 4 --memory 16GiB",
    f"job plan --file {JOBS} --allow-mount /data --commands",
    f"job submit --file {JOBS} --policy {POLICY}",  # refused: this policy has no `jobs`
    "job list",
    "job show fit-1",
    "job logs fit-1",
    "job cancel fit-1",
    f"job run --policy {POLICY}",
    "defrag --dry-run",
    f"cluster create --file {CLUSTER} --yes",  # refused: this vCenter has no such template
    "cluster show",
    f"cluster delete --file {CLUSTER} --yes",
    f"pool create --file {POOL}",
    "pool lend --client ml-07 --gpu-memory 8GiB --for 1h",
    "pool show --output json",
    "pool return --client ml-07",
    "pool reclaim --due",
    "host scheduler show",
    "host scheduler set --scheduler fixed-share --host esx-01*",
    "host mode show",
    "host passthrough show",
    "host mode set --default-type shared --host esx-01*",
    "host passthrough on --gpu 0000:3b:00.0 --host esx-01*",
    f"rotate init --policy {POLICY}",
    f"rotate plan --policy {POLICY}",
    f"queue --policy {POLICY}",
    f"rotate night --policy {POLICY} --yes",
    f"rotate watch --policy {SPARE_POLICY} --dry-run",
    "rotate status",
    "rotate status --output json",
    f"rotate day --policy {POLICY} --yes",
    "rotate resume --yes",
    f"rotate skip-next --policy {POLICY}",
    f"rotate mark --opt-out --vm vdi-01 --policy {POLICY}",
    f"rotate restore --policy {POLICY} --yes",
    "rotate unlock --id 0123456789abcdef",
    "rotate audit verify",
    "rotate overdue",
    "history",
    "history show 2026-11-20",
    "observe --once",
    "observe status",
    "metrics --textfile metrics.prom",
    "serve --listen 0.0.0.0:0",  # refused; as a service it is swept in test_serve.py
    "mcp --output json",  # refused; its tools are commands of this list
    "runner init",
    "runner init --sql",
    "runner status",
    "runner run",  # refused: no policy is configured
    "rotate night --policy /nowhere.yaml",
    "sim ledger --ready-file /nowhere.json",
    f"roles show --file {ROLES}",
    f"roles apply --file {ROLES}",
    "host passthrough off --gpu 0000:3b:00.0 --host esx-01*",
    "host mig show",
    "host mig on --host esx-01*",
    "host mig off --host esx-01*",
    "change status",
    "change resume --yes",
    "change abort --yes",
    "change abandon --host esx-01 --yes",
    "rotate abandon --vm vdi-01 --yes",
    "rotate adopt --from 3c5e0b0a-8f4e-4f43-9d67-0c8a5f1b2d11 --yes",
    "rotate timers --policy /nowhere.yaml",
    "rotate clear-marker --vm vdi-01 --policy /nowhere.yaml --yes",
    "setup --address vc.example.com",  # refused: not reachable; test_setup.py types its password
    "config init --address vc.example.com",
    "config show --output json",
    "config set vcenter.port 8443",
    "notify test",
    "notify flush",
)
READING: Final = (
    "inventory --vms --output json",
    "capacity",
    f"doctor --roles {ROLES}",
    "defrag --max-moves 1 --dry-run",
    "host scheduler show",
    "host mode show",
    "rotate status",
)
WITHOUT_LOGIN: Final = frozenset(
    {
        "diagnose train",
        "demo",
        "explain",
        "help",
        "host mig check",
        "profiles",
        "schema",
        "sim serve",
        "sim faults",
        "template list",
        "template show",
        "template write",
    }
)
"""Commands that need no login."""
UNLIKE: Final = {
    "wrong user": ({"GPUOPS_USERNAME": "nobody@vsphere.local"}, 5),
    "untrusted": ({"GPUOPS_CA_FILE": "/etc/ssl/certs/ca-certificates.crt"}, 5),
    "down": ({"GPUOPS_VCENTER": "https://127.0.0.1:1"}, 5),
    "no address": ({"GPUOPS_VCENTER": f"https://u:{quote(CANARY)}@vc:port"}, 2),
    "another scheme": ({"GPUOPS_VCENTER": f"ftp://u:{quote(CANARY)}@vc"}, 2),
    "in the clear": ({"GPUOPS_VCENTER": "http://vc.invalid"}, 5),
    "an invalid proxy": ({"GPUOPS_PROXY": f"u:{CANARY}@proxy"}, 2),
    "an invalid journal": ({"GPUOPS_JOURNAL_URL": f"mysql://u:{quote(CANARY)}@db/j"}, 2),
    "a journal that is away": ({"GPUOPS_JOURNAL_URL": f"postgresql://u:{quote(CANARY, safe='')}@127.0.0.1:1/j"}, None),
    "an invalid boolean": ({"GPUOPS_INSECURE": CANARY}, 2),
}
"""What is wrong in the environment, and the exit code; None: whatever it is."""


@pytest.fixture(scope="module")
def server() -> Iterator[SimServer]:
    with SimServer(build("lab"), password=CANARY) as running:
        yield running


@pytest.fixture
def environ(server: SimServer, clean: Path) -> dict[str, str]:
    """The password in files, a debugging switch that shows tracebacks, and nothing in the environment itself."""
    for name in ("vcenter", "guest"):
        (clean / name).write_text(CANARY, encoding="utf-8")
        (clean / name).chmod(0o600)
    return {
        "GPUOPS_VCENTER": f"https://127.0.0.1:{server.port}",
        "GPUOPS_USERNAME": server.username,
        "GPUOPS_PASSWORD_FILE": str(clean / "vcenter"),
        "GPUOPS_CA_FILE": str(server.ca_file),
        "GPUOPS_GUEST_USERNAME": "ml",
        "GPUOPS_GUEST_PASSWORD_FILE": str(clean / "guest"),
        "GPUOPS_DEBUG": "1",
    }


def look_through(home: Path) -> None:
    """None of our files holds it, but those that it was written into to be read."""
    require_no_file(home, but=(home / "vcenter", home / "guest"))


@pytest.fixture
def typed(environ: dict[str, str], capfd: pytest.CaptureFixture[str]) -> Callable[..., Result]:
    """Types a command: what it prints, on either stream and by any other way, is looked through."""

    def run(words: str, **variables: str) -> Result:
        result = CliRunner().invoke(app, shlex.split(words), env={**environ, **variables})
        by_other_ways = capfd.readouterr()
        for printed in (result.stdout, result.stderr, by_other_ways.out, by_other_ways.err):
            require_hidden(f"gpuops {words}", printed)
        return result

    return run


def _leaves(command: Any, name: str = "") -> Iterator[str]:
    inner = getattr(command, "commands", None)
    if not inner:
        yield name
        return
    for word, child in inner.items():
        yield from _leaves(child, f"{name} {word}".strip())


def test_every_command_is_swept() -> None:
    swept = {" ".join(shlex.split(words)[:length]) for words in SWEPT for length in (1, 2, 3)}
    assert set(_leaves(get_command(app))) - swept - WITHOUT_LOGIN == set()


def test_every_command_hides_it(
    typed: Callable[..., Result],
    clean: Path,
    server: SimServer,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(clean)  # what a command writes beside it is looked through too
    caplog.set_level(logging.DEBUG)
    codes = {words: typed(words).exit_code for words in SWEPT}
    assert codes["inventory"] == 0, "the login is right"
    assert codes[f"rotate night --policy {POLICY} --yes"] == 0
    assert 1 not in codes.values(), codes
    assert (clean / "metrics.prom").exists()
    require_hidden("logging", caplog.text)
    look_through(clean)
    assert [entry for entry in server.world.ledger if "Cn4ry" in repr(entry)] == []
    assert list(server.world.sessions) == []


@pytest.mark.long
@pytest.mark.parametrize("scenario", ["accelerators", "fleet", "scattered", "supervisor", "training", "vdi"])
def test_no_scenario_shows_it(scenario: str, typed: Callable[..., Result], clean: Path) -> None:
    """What the other simulated vCenters bring up: their names, their sizes, their hosts."""
    with SimServer(build(scenario), password=CANARY) as other_server:
        variables = {
            "GPUOPS_VCENTER": f"https://127.0.0.1:{other_server.port}",
            "GPUOPS_CA_FILE": str(other_server.ca_file),
        }
        codes = {words: typed(words, **variables).exit_code for words in READING}
        assert set(codes.values()) <= {0, 3}, codes
        assert list(other_server.world.sessions) == []
    look_through(clean)


@pytest.mark.long
@pytest.mark.parametrize("words", ["inventory --output json", "report --html sites.html", "metrics --textfile m.prom"])
def test_processes_of_sites_hide_it(
    typed: Callable[..., Result], clean: Path, server: SimServer, monkeypatch: pytest.MonkeyPatch, words: str
) -> None:
    """One that is there, one that refuses the login, one that is away; one password of the environment for all of them
    is refused, and not told."""
    monkeypatch.chdir(clean)
    file = clean / "sites.toml"
    host_line = f'host = "https://127.0.0.1:{server.port}"\n'
    mine = f'{host_line}username = "{server.username}"\n'
    targets = {"one": mine, "two": f'{host_line}username = "nobody@vsphere.local"\n', "gone": 'host = "127.0.0.1:1"\n'}
    password = f'password_file = "{clean / "vcenter"}"\n'
    guest = f'username = "ml"\npassword_file = "{clean / "guest"}"\n'
    entries = [f"[targets.{name}]\n{keys}{password}[targets.{name}.guest]\n{guest}" for name, keys in targets.items()]
    file.write_text("".join(entries), encoding="utf-8")
    logins = ("USERNAME", "PASSWORD_FILE", "GUEST_USERNAME", "GUEST_PASSWORD_FILE")
    variables = {"GPUOPS_CONFIG": str(file), **{f"GPUOPS_{login}": "" for login in logins}}
    result = typed(f"{words} --site all", **variables)
    assert result.exit_code == 4, result.stderr
    assert typed(f"{words} --site all", **variables, GPUOPS_PASSWORD=CANARY).exit_code == 2
    assert typed(f"{words} --site all", **{**variables, "GPUOPS_GUEST_PASSWORD": CANARY}).exit_code == 2
    look_through(clean)
    assert list(server.world.sessions) == []


@pytest.mark.parametrize("wrong", UNLIKE)
def test_no_error_shows_it(typed: Callable[..., Result], clean: Path, wrong: str) -> None:
    variables, code = UNLIKE[wrong]
    result = typed("rotate status", **variables)
    assert result.exit_code not in (0, 1)
    assert code in (None, result.exit_code), result.stderr
    metrics = typed(f"metrics --textfile {clean / 'metrics.prom'}", **variables)
    assert code in (None, metrics.exit_code), metrics.stderr
    look_through(clean)


def test_a_wrong_password_is_not_repeated(typed: Callable[..., Result], clean: Path) -> None:
    (clean / "vcenter").write_text(CANARY + "x", encoding="utf-8")
    result = typed("inventory")
    assert (result.exit_code, "user name or password refused" in result.stderr) == (5, True)


def test_no_process_shows_it(environ: dict[str, str]) -> None:
    """While it waits for the password on stdin its command line and environment are read, as `ps` does."""
    command = [sys.executable, "-m", "gpuops", "inventory", "--password-stdin"]
    environ.pop("GPUOPS_PASSWORD_FILE")
    with subprocess.Popen(
        command, env={**os.environ, **environ}, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        try:
            proc = Path(f"/proc/{process.pid}")
            process_text = (proc / "cmdline").read_bytes() + (proc / "environ").read_bytes()
            out, err = process.communicate(f"{CANARY}\n".encode(), timeout=60)
        finally:
            process.kill()
    assert process.returncode == 0, err
    require_hidden("/proc", process_text.decode("utf-8", "replace"))
    require_hidden("its output", (out + err).decode("utf-8", "replace"))


def test_a_crash_leaves_no_core() -> None:
    """The limit as the kernel has it for the process and whatever it starts, after `main` has begun."""
    soft, hard = resource.getrlimit(resource.RLIMIT_CORE)
    code = (
        "import resource, sys; from gpuops.cli import app; app.app = lambda **_: None; app.main();"
        " print(resource.getrlimit(resource.RLIMIT_CORE))"
    )
    process = subprocess.run([sys.executable, "-c", code], capture_output=True, encoding="utf-8", check=True)
    assert process.stdout == "(0, 0)\n"
    assert resource.getrlimit(resource.RLIMIT_CORE) == (soft, hard), "of that process alone"


def test_tracebacks_never_show_locals() -> None:
    assert app.pretty_exceptions_show_locals is False
    assert app.pretty_exceptions_enable is False
