"""Several vCenters at once: simulated ones in processes of their own, and some that are dead, hang or refuse."""

from __future__ import annotations

import csv
import errno
import io
import json
import os
import pickle
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final

import pytest
from playwright.sync_api import Browser
from typer.main import get_command
from typer.testing import CliRunner, Result

from gpuops.cli.app import app
from gpuops.clock import passed_s, pause
from tests.bench.simulator.simulators import our_simulator
from tests.document_schemas import misfits
from tests.prometheus import samples
from tests.waiting import wait_until

SERVED: Final = {"fra": "lab", "muc": "scattered"}
Sites = Callable[..., Result]
SHOW: Final = ("host", "mode", "show")
READING: Final = {
    "broker show", "capacity", "change status", "cluster show", "doctor", "history", "idle", "inventory", "job list",
    "job plan", "job show", "metrics", "host mig show", "host mode show", "host passthrough show", "place", "pool show",
    "queue", "readiness", "report", "roles show", "rotate plan", "rotate status", "host scheduler show",
    "serve", "size", "top", "what-if",
}  # fmt: skip
"""What takes --site; `history` is a group that is a command too."""


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, dict[str, str]]]:
    """What the configuration file says of each simulated vCenter: address, authority, user and password file."""
    sites = {}
    with ExitStack() as stack:
        for name, scenario in SERVED.items():
            endpoint = stack.enter_context(our_simulator(scenario, "--clock", "stepped")).endpoint
            password = tmp_path_factory.mktemp(name) / "password"
            password.write_text(endpoint.password, encoding="utf-8")
            password.chmod(0o600)
            sites[name] = {
                "host": endpoint.url,
                "username": endpoint.username,
                "password_file": str(password),
                "ca_file": str(endpoint.ca_file),
            }
        yield sites


@pytest.fixture
def configured(
    served: dict[str, dict[str, str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[..., None]:
    """Writes the configuration file: the served sites, and others."""

    def write(**more_sites: dict[str, str]) -> None:
        named = {"fra": {**served["fra"], "zone": "Europe/Berlin"}, "muc": served["muc"], **more_sites}
        tables = (
            f"[targets.{name}]\n" + "".join(f"{key} = {_toml(value)}\n" for key, value in keys.items())
            for name, keys in named.items()
        )
        (tmp_path / "config.toml").write_text("\n".join(tables), encoding="utf-8")
        monkeypatch.setenv("GPUOPS_CONFIG", str(tmp_path / "config.toml"))

    write()
    return write


def _toml(value: Any) -> str:
    inner = (
        ", ".join(f"{key} = {_toml(inner_value)}" for key, inner_value in value.items())
        if isinstance(value, dict)
        else ""
    )
    return f"{{ {inner} }}" if isinstance(value, dict) else json.dumps(value)


def run(*words: str, **options: Any) -> Result:
    return CliRunner().invoke(app, list(words), **options)


def document(result: Result) -> dict[str, Any]:
    """The document, whose sites' own documents are as their schemas say."""
    printed: dict[str, Any] = json.loads(result.stdout)
    assert [misfit for site_document in printed["sites"].values() for misfit in misfits(site_document)] == []
    return printed


@pytest.fixture
def hanging() -> Iterator[str]:
    """The address of something that takes connections and never says a word."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield f"http://127.0.0.1:{server.getsockname()[1]}"


@pytest.fixture
def dead() -> str:
    """An address without a listener."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        return f"http://127.0.0.1:{server.getsockname()[1]}"


@pytest.mark.usefixtures("configured")
class TestAllAnswer:
    def test_each_answer_is_the_one_of_its_vcenter_alone(self) -> None:
        for words in (["inventory"], ["capacity"], ["readiness"], ["change", "status"], ["host", "scheduler", "show"]):
            result = run(*words, "--site", "all", "-o", "json")
            answer = document(result)
            alone = {name: json.loads(run(*words, "--vcenter", name, "-o", "json").stdout) for name in SERVED}
            assert _timeless(answer["sites"]) == _timeless(alone)
            assert (result.exit_code, list(answer["sites"]), answer["unreachable"]) == (0, list(SERVED), {})

    @pytest.mark.long
    def test_jobs_are_planned_on_each_vcenter_alone(self) -> None:
        jobs = Path(__file__).parents[3] / "templates" / "jobs.yaml"
        words = ("job", "plan", "--file", str(jobs), "--allow-mount", "/data", "-o", "json")
        alone = {name: run(*words, "--vcenter", name) for name in SERVED}
        together = run(*words, "--site", "all")
        singly = {name: json.loads(completed.stdout) for name, completed in alone.items()}
        assert _timeless(document(together)["sites"]) == _timeless(singly)
        assert together.exit_code == max(completed.exit_code for completed in alone.values())

    @pytest.mark.long
    def test_sharing_is_told_of_each_vcenters_own_measurements(self) -> None:
        words = ("size", "--profile", "nvidia_a40-8q", "-o", "json")
        alone = {name: run(*words, "--vcenter", name) for name in SERVED}
        together = run(*words, "--site", "all")
        assert {completed.exit_code for completed in alone.values()} == {2}, "nothing was measured"
        failed = document(together)["failed"]
        assert {name: f"error: {failure['message']}" for name, failure in failed.items()} == {
            name: completed.stderr.splitlines()[0] for name, completed in alone.items()
        }

    def test_totals_are_the_sums_of_single_answers(self) -> None:
        report = document(run("report", "--site", "all", "-o", "json"))
        alone = [json.loads(run("report", "--vcenter", name, "-o", "json").stdout) for name in SERVED]
        assert sum(site_report["use"]["gpus"] for site_report in report["sites"].values()) == sum(
            single_report["use"]["gpus"] for single_report in alone
        )
        rows = run("inventory", "--site", "all", "--vms").stdout.splitlines()
        single = [run("inventory", "--vcenter", name, "--vms").stdout.splitlines() for name in SERVED]
        assert len(rows) - 1 == sum(len(lines) - 1 for lines in single)

    @pytest.mark.long
    def test_as_text(self, golden: Callable[[str, str], None]) -> None:
        """Tables of the same columns are one with the site first; trees stand below a heading."""
        golden("sites-vms.txt", run("inventory", "--site", "all", "--vms").stdout)
        tree = run("inventory", "--site", "all").stdout
        golden("sites-inventory.txt", re.sub(r"\d{4}-\d\d-\d\d \d\d:\d\d (CES?T|UTC)$", "(then)", tree, flags=re.M))
        assert re.search(r"^fra, \d{4}-\d\d-\d\d \d\d:\d\d CES?T$", tree, re.M), "in its own zone"
        assert re.search(r"^muc, .* UTC$", tree, re.M)

    @pytest.mark.long
    def test_a_pattern_a_label_and_a_name(self, configured: Callable[..., None], served: Any) -> None:
        configured(mad={**served["muc"], "labels": {"region": "south"}}, mal={"host": "127.0.0.1:1"})
        for word, names in (("m[ua][cd]", ["muc", "mad"]), ("region=s*", ["mad"]), ("fra", ["fra"])):
            result = run("host", "mode", "show", "--site", word, "-o", "json")
            assert (result.exit_code, list(document(result)["asked"])) == (0, names), result.stderr
        assert document(run("--site", "fra", "host", "mode", "show", "-o", "json"))["asked"].keys() == {"fra"}

    @pytest.mark.long
    def test_one_at_a_time_is_the_same(self) -> None:
        one_at_a_time, many = (
            run("host", "mode", "show", "--site", "all", "-o", "json", "--parallel", jobs) for jobs in ("1", "8")
        )
        assert _timeless(document(one_at_a_time)["sites"]) == _timeless(document(many)["sites"])

    @pytest.mark.long
    def test_history_is_that_of_the_vcenter(self) -> None:
        """They share one journal; of each its own nights, under its own name, and the table of CSV has the site."""
        policy = "lab-policy.yaml"
        assert run("rotate", "night", "--policy", _scenario(policy), "--yes", "--vcenter", "fra").exit_code == 0
        try:
            history = document(run("history", "--site", "all", "-o", "json"))
            assert {name: len(site_history["nights"]) for name, site_history in history["sites"].items()} == {
                "fra": 1,
                "muc": 0,
            }
            header, *rows = csv.reader(io.StringIO(run("history", "--site", "all", "-o", "csv").stdout))
            assert (header[:2], [row[:2] for row in rows]) == (["site", "kind"], [["fra", "night"]])
        finally:
            assert run("rotate", "day", "--yes", "--vcenter", "fra").exit_code == 0

    @pytest.mark.long
    def test_the_policy_of_the_site_is_read(self, configured: Callable[..., None], served: Any) -> None:
        configured(ber={**served["fra"], "policy": _scenario("lab-policy.yaml")})
        sites = document(run("idle", "--site", "all", "-o", "json"))["sites"]
        assert {name: verdicts["policy"] for name, verdicts in sites.items()} == {
            "fra": None,
            "muc": None,
            "ber": "lab-night",
        }

    @pytest.mark.long
    def test_codes_of_commands(self) -> None:
        """The highest counts: `scattered` has a host that cannot be emptied by itself."""
        alone = [run("readiness", "--strict", "--vcenter", name).exit_code for name in SERVED]
        assert run("readiness", "--strict", "--site", "all").exit_code == max(alone) == 3

    @pytest.mark.long
    def test_metrics(self, tmp_path: Path, configured: Callable[..., None], dead: str) -> None:
        configured(nyc={"host": dead, "username": "x", "password_file": _secret(tmp_path)})
        path = tmp_path / "all.prom"
        result = run("metrics", "--site", "all", "--textfile", str(path), "-o", "json")
        text = path.read_text(encoding="utf-8")
        assert result.exit_code == 4
        assert {metrics["file"] for metrics in document(result)["sites"].values()} == {str(path)}
        assert re.findall(r'^gpuops_up\{vcenter="(\w+)"\} (\d)', text, re.M) == [
            ("fra", "1"),
            ("muc", "1"),
            ("nyc", "0"),
        ]
        assert len(samples(text, with_vcenter=True)["gpuops_up"]) == 3
        names = re.findall(r"^# HELP (\S+)", text, re.M)
        assert sorted(names) == sorted(set(names)), "a family stands there once"

    @pytest.mark.long
    def test_report_is_one_page(
        self, tmp_path: Path, configured: Callable[..., None], dead: str, chromium: Browser
    ) -> None:
        configured(nyc={"host": dead, "username": "x", "password_file": _secret(tmp_path)})
        path, hours = tmp_path / "all.html", tmp_path / "hours.csv"
        result = run("report", "--site", "all", "--html", str(path), "--csv", str(hours))
        assert (result.exit_code, path.stat().st_mode & 0o077) == (4, 0)
        assert "gpuops-sites-" not in result.output
        assert hours.read_text(encoding="utf-8").startswith("x_Site,BilledCost,")
        page = chromium.new_page()
        complaints: list[str] = []
        page.on("console", lambda message: complaints.append(message.text))
        page.goto(path.as_uri())
        assert page.locator("table").first.locator("tbody th").all_inner_texts() == ["fra", "muc"]
        gpus = [json.loads(run("report", "--vcenter", name, "-o", "json").stdout)["use"]["gpus"] for name in SERVED]
        assert page.locator("tfoot td").nth(2).inner_text() == str(sum(gpus))
        assert "nyc" in page.locator("[aria-label='Sites without an answer']").inner_text()
        page.select_option("#site", "muc")
        assert page.locator("details.site:visible summary").all_inner_texts() == ["muc"]
        frame = page.frame_locator("details.site[data-site=muc] iframe")
        assert frame.locator("h1").inner_text() == "GPU fleet"
        assert frame.locator("#fleet .host").count() > 0, "the page inside draws its map"
        page.close()
        assert complaints == []


def _secret(folder: Path) -> str:
    path = folder / "secret"
    path.write_text("wrong", encoding="utf-8")
    path.chmod(0o600)
    return str(path)


def _scenario(name: str) -> str:
    from importlib.resources import files

    return str(files("gpuops.sim") / "scenarios" / name)


def _timeless(value: Any) -> Any:
    """Without what differs from one look to the next."""
    if isinstance(value, dict):
        return {key: _timeless(child) for key, child in value.items() if key != "read_at"}
    return [_timeless(child) for child in value] if isinstance(value, list) else value


class TestSomeDoNot:
    @pytest.mark.long
    def test_dead_hanging_and_refused_are_named_and_sink_nobody(
        self, configured: Callable[..., None], served: Any, dead: str, hanging: str, tmp_path: Path
    ) -> None:
        login = {"username": "x", "password_file": _secret(tmp_path)}
        configured(
            gone={"host": dead, **login},
            hung={"host": hanging, **login},
            wrong={**served["fra"], "password_file": _secret(tmp_path)},
            nobody={"host": dead, "username": "x"},
        )
        began_s = passed_s()
        result = run("host", "mode", "show", "--site", "all", "-o", "json", "--site-timeout", "12")
        assert passed_s() - began_s < 40, "one that hangs costs its time once"
        answer = document(result)
        assert (result.exit_code, answer["exit_code"], list(answer["sites"])) == (4, 4, ["fra", "muc"])
        assert {name: failure["code"] for name, failure in answer["unreachable"].items()} == {
            "gone": "vcenter-unreachable",
            "hung": "vcenter-unreachable",
            "wrong": "login-refused",
        }
        assert {name: failure["code"] for name, failure in answer["failed"].items()} == {"nobody": "target-error"}
        assert "did not answer within 12 s" in answer["unreachable"]["hung"]["message"]
        assert "password_file" in answer["failed"]["nobody"]["hint"]
        for name in (*answer["unreachable"], *answer["failed"]):
            assert f"error: {name}: " in result.stderr

    @pytest.mark.long
    def test_named_in_text_too(self, configured: Callable[..., None], dead: str, tmp_path: Path) -> None:
        configured(gone={"host": dead, "username": "x", "password_file": _secret(tmp_path)})
        result = run("host", "mode", "show", "--site", "all")
        assert result.stdout.endswith("\n\n2 of 3 sites answered; not reached: gone\n")

    def test_failed_is_not_unreachable(self, configured: Callable[..., None]) -> None:
        result = run("host", "mode", "show", "--site", "all", "--cluster", "lab-cluster", "-o", "json")
        answer = document(result)
        assert (result.exit_code, list(answer["sites"]), answer["unreachable"]) == (4, ["fra"], {})
        assert answer["failed"]["muc"]["exit_code"] == 2

    @pytest.mark.long
    def test_none_answers(self, configured: Callable[..., None], dead: str, tmp_path: Path) -> None:
        login = {"username": "x", "password_file": _secret(tmp_path)}
        configured(gone={"host": dead, **login}, lost={"host": dead, "username": "x"})
        result = run("host", "mode", "show", "--site", "[gl]o*", "-o", "json")
        assert (result.exit_code, document(result)["of"], document(result)["sites"]) == (5, None, {})

    @pytest.mark.long
    def test_what_is_wrong_everywhere_is_said_once(self, configured: Callable[..., None]) -> None:
        result = run("capacity", "--site", "all", "--forecast", "--cluster", "x")
        assert (result.exit_code, result.stderr.count("error:")) == (2, 1)

    @pytest.mark.parametrize(
        "option", ["--password-file", "GPUOPS_PASSWORD", "GPUOPS_PASSWORD_FILE", "GPUOPS_GUEST_PASSWORD"]
    )
    def test_one_password_is_not_sent_to_several(
        self, configured: Callable[..., None], monkeypatch: pytest.MonkeyPatch, tmp_path: Path, option: str
    ) -> None:
        words = [option, _secret(tmp_path)] if option.startswith("-") else []
        if not words:
            monkeypatch.setenv(option, _secret(tmp_path))
        result = run("host", "mode", "show", "--site", "all", *words)
        assert (result.exit_code, result.stdout) == (2, "")
        assert result.stderr.startswith(f"error: {option} would go to each of ")
        assert "would go to each" not in run("host", "mode", "show", "--site", "fra", *words).stderr

    @pytest.mark.long
    @pytest.mark.parametrize("byte_count", [0, 40])
    def test_a_process_that_is_killed_is_named(
        self, configured: Callable[..., None], monkeypatch: pytest.MonkeyPatch, byte_count: int
    ) -> None:
        """Before its answer, and in the middle of it."""

        def killed(answer: Any, file: Any) -> None:
            file.write(pickle.dumps(answer)[:byte_count])
            file.flush()
            os.kill(os.getpid(), signal.SIGKILL)

        monkeypatch.setattr(pickle, "dump", killed)
        result = run("host", "mode", "show", "--site", "fra", "-o", "json")
        assert (result.exit_code, document(result)["failed"]["fra"]["code"]) == (1, "internal-error")
        assert "signal 9" in result.stderr

    @pytest.mark.long
    def test_an_answer_that_finds_no_room_is_named(
        self, configured: Callable[..., None], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def full(answer: Any, file: Any) -> None:
            raise OSError(errno.ENOSPC, "No space left on device")

        monkeypatch.setattr(pickle, "dump", full)
        result = run("host", "mode", "show", "--site", "fra")
        assert (result.exit_code, "Traceback" in result.stderr, "TMPDIR" in result.stderr) == (1, False, True)

    @pytest.mark.long
    @pytest.mark.usefixtures("interruptible")
    @pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
    def test_interrupted(self, configured: Callable[..., None], hanging: str, tmp_path: Path, number: int) -> None:
        """All children end with it: none is left, whichever signal came, though to the parent alone."""
        configured(hung={"host": hanging, "username": "x", "password_file": _secret(tmp_path)})
        command = [sys.executable, "-m", "gpuops", "host", "mode", "show", "--site", "all"]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, encoding="utf-8") as process:
            try:
                children = _children(process.pid, 1)
                pause(2.0)
                process.send_signal(number)
                out, _ = process.communicate(timeout=60)
            finally:
                process.kill()
        assert (process.returncode, out) == (128 + number, "")
        assert [pid for pid in children if Path(f"/proc/{pid}").exists()] == []


def _children(pid: int, least: int) -> set[int]:
    """The processes that this one has started, once there are so many."""
    path = Path(f"/proc/{pid}/task/{pid}/children")
    wait_until(lambda: len(path.read_text(encoding="ascii").split()) >= least)
    return {int(child) for child in path.read_text(encoding="ascii").split()}


@pytest.mark.quick_cases(4)
@pytest.mark.parametrize(
    ("words", "message", "move"),
    [
        (["inventory", "--site", "x*"], "--site x* matches no target of", "use one of: fra, muc"),
        (["inventory", "--site", "fro"], "did you mean fra?", "use one of: fra, muc"),
        (["inventory", "--site", "all", "--vcenter", "fra"], "--site and --vcenter exclude each other", "--vcenter"),
        (["inventory", "--site", "all", "--save", "f"], "--site and --save exclude each other", "--vcenter NAME"),
        (
            ["metrics", "--site", "all", "--listen", "9", "--parallel", "2"],
            "a service does not accept --parallel",
            "remove --parallel",
        ),
        (["serve", "--site", "all", "--vcenter", "fra"], "--site and --vcenter exclude each other", "--vcenter NAME"),
        (["serve", "--site", "x*"], "--site x* matches no target of", "use one of: fra, muc"),
        (["rotate", "status", "--site", "all", "--follow"], "--site and --follow exclude each other", "--vcenter NAME"),
        (["size", "--site", "all", "--busy", "0.5"], "--site and --busy exclude each other", "remove --site"),
        (["size", "--site", "all"], "size: no option selects VMs", "use --profile, --vm, --tag"),
        (["inventory", "--parallel", "2"], "--parallel and --site-timeout need --site", "--site all"),
        (["attach", "--site", "all", "--vm", "x"], "attach works on one vCenter", "--vcenter NAME"),
        (["--site", "fra", "rotate", "day"], "rotate day works on one vCenter", "--vcenter NAME"),
    ],
)
def test_what_is_not_meant_is_said(configured: Callable[..., None], words: list[str], message: str, move: str) -> None:
    result = run(*words)
    lines = result.stderr.splitlines()
    assert (result.exit_code, len(lines)) == (2, 2), result.output
    assert message in lines[0] and lines[0].startswith("error: ")
    assert move in lines[1] and lines[1].startswith("next: ")


@pytest.mark.long
def test_without_targets(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("GPUOPS_CONFIG", str(tmp_path / "none.toml"))
    result = run("inventory", "--site", "all")
    assert (result.exit_code, "has no targets" in result.stderr) == (2, True)


@pytest.mark.long
def test_every_command_that_reads_takes_it_and_no_other() -> None:
    """A command that changes something would change it in every vCenter that a pattern happens to mean."""
    assert {name for name, command in _commands(get_command(app), "") if _takes_site(command)} == READING


def _commands(command: Any, name: str) -> Iterator[tuple[str, Any]]:
    if name:
        yield name, command
    for word, child in getattr(command, "commands", {}).items():
        yield from _commands(child, f"{name} {word}".strip())


def _takes_site(command: Any) -> bool:
    return any(parameter.name == "site" for parameter in command.params)
