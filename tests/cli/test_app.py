"""The command as a process: quick help, examples everywhere, one line and the right code for whatever goes wrong."""

from __future__ import annotations

import errno
import json
import os
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner, Result

from gpuops import __version__
from gpuops.cli.app import BY_SUBJECT, EVERYDAY, SHORT_HELP, app
from gpuops.console.failure import INTERRUPTED, run_guarded
from gpuops.console.options import CommonOptions
from gpuops.errors import GpuopsError, Locked, Refused
from gpuops.sim.server import SimServer

HEAVY = (
    "msgspec",
    "numpy",
    "prometheus_client",
    "pyVmomi",
    "lxml",
    "ansible",
    "sqlalchemy",
    "yaml",
    "pydantic",
    "rich",
    "jinja2",
    "cryptography",
    "com",
    "vmware",
)


def commands() -> Iterator[tuple[str, Any]]:
    """Every command by the words that call it, groups included."""

    def walk(words: tuple[str, ...], command: Any) -> Iterator[tuple[str, Any]]:
        yield " ".join(words), command
        for name, below in getattr(command, "commands", {}).items():
            yield from walk((*words, name), below)

    yield from walk(("gpuops",), typer.main.get_command(app))


ALL = dict(commands())
NOTHING: dict[str, int] = {}
LEAVES = {words: command for words, command in ALL.items() if not hasattr(command, "commands")}
CONNECTED = [words for words, command in LEAVES.items() if any(each.name == "thumbprint" for each in command.params)]
"""Commands that reach vCenter, or a journal that is kept beside it."""


def run(*arguments: str, **environ: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "gpuops", *arguments],
        capture_output=True,
        encoding="utf-8",
        timeout=60,
        check=False,
        # A home below a file: not even root can create it, so that no run leaves files to the next.
        env={"PATH": os.environ["PATH"], "HOME": f"{__file__}/home", **environ},
    )


def run_app(*arguments: str) -> Result:
    """The same without a process of its own: `RootGroup` ends every way of calling the command alike."""
    return CliRunner().invoke(app, arguments, prog_name="gpuops")


@pytest.mark.long
def test_a_home_that_cannot_be_and_an_encoding_without_lines() -> None:
    """Trees are drawn with what there is; what one run left at a home would be another's configuration or journal."""
    process = run("inventory", "--vcenter", "sim:lab", PYTHONIOENCODING="ascii")
    assert (process.returncode, "NUMA node 0" in process.stdout, "\\u" in process.stdout) == (0, True, False)
    assert not Path("/nonexistent").exists()


@pytest.mark.long
def test_help_imports_nothing_heavy() -> None:
    code = (
        "import sys\nfrom gpuops.cli.app import app\n"
        "try:\n    app(['--help'])\nexcept SystemExit:\n    print(*sys.modules)"
    )
    process = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, encoding="utf-8", timeout=60, check=True
    )
    loaded = {name.partition(".")[0] for name in process.stdout.splitlines()[-1].split()}
    assert "typer" in loaded
    assert loaded.isdisjoint(HEAVY), sorted(loaded.intersection(HEAVY))


@pytest.mark.long
def test_a_look_at_the_rotation_loads_no_planner() -> None:
    """Status and inventory, which people type most, import what they show and not what nights are planned with."""
    code = (
        "import sys\nfrom gpuops import api\nfrom gpuops.console import opening\n"
        "from gpuops.cli.monitoring import inventory\nfrom gpuops.cli import rotate\n"
        "from gpuops.execute.rotation import status\nfrom gpuops.report.nights import rotation_status_view\n"
        "from gpuops.report.monitoring import fleet_view, inventory_view\n"
        "from gpuops.vsphere import connection\nfrom gpuops.hostshell import guest_ssh\nprint(*sys.modules)"
    )
    process = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, encoding="utf-8", timeout=60, check=True
    )
    loaded = set(process.stdout.split())
    assert "gpuops.report.nights.rotation_status_view" in loaded
    planners = {"numpy", "highspy", "gpuops.plan.rotation.nights.night", "gpuops.plan.capacity.capacity_request"}
    assert loaded.isdisjoint({*planners, "gpuops.plan.hosts.change.rolling_plan", "gpuops.hostshell.ssh", "pyVmomi"})


FOR_RUNS = {
    *("sqlalchemy", "numpy", "highspy", "jinja2", "keyring", "asyncssh", "rich.markdown"),
    *("gpuops.vsphere.writing", "gpuops.execute.steps", "gpuops.execute.journal", "gpuops.report.step_changes"),
}
OF_A_READ = {"command_line", "rejection", "scope", "versions"}
"""Modules of `plan.core` that a read may load: words and names, and no plan."""


@pytest.mark.long
def test_inventory_of_the_lab_loads_nothing_of_what_changes_it() -> None:
    """Neither planner nor executor nor what writes to vCenter, the journal's database, SSH and the solvers."""
    loaded = _loaded_by("['inventory', '--vcenter', 'sim:lab']")
    assert "gpuops.sim.server" in loaded
    assert loaded.isdisjoint({"pydantic"} | FOR_RUNS), sorted(loaded & ({"pydantic"} | FOR_RUNS))
    plans = {name for name in loaded if name.startswith("gpuops.plan.")} - {"gpuops.plan.core"}
    assert plans <= {f"gpuops.plan.core.{name}" for name in OF_A_READ}, sorted(plans)


@pytest.mark.long
def test_a_read_of_a_vcenter_without_a_file_loads_no_pydantic(simulated_vcenter: SimServer, tmp_path: Path) -> None:
    """Nor pyVmomi: a word of a list, an option that is not given and the path of a file need no check."""
    password = tmp_path / "password"
    password.touch(mode=0o600)
    password.write_text(simulated_vcenter.password, encoding="utf-8")
    words = ["inventory", "--hosts", "--output", "json", "--vcenter", simulated_vcenter.url]
    words += ["--password-file", str(password), "--ca-file", str(simulated_vcenter.ca_file)]
    loaded = _loaded_by(
        repr(words),
        GPUOPS_USERNAME=simulated_vcenter.username,
        HOME=str(tmp_path),
        XDG_CACHE_HOME=str(tmp_path),
    )
    assert "gpuops.report.monitoring.fleet_view" in loaded
    heavy = {"pydantic", "pyVmomi", "cryptography", "gpuops.sim.server", "gpuops.plan.core.steps"} | FOR_RUNS
    assert loaded.isdisjoint(heavy), sorted(loaded & heavy)


def test_a_file_that_may_not_be_read_is_refused_before_anything_is_done(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "ca.pem"
    file.touch()
    monkeypatch.setattr(os, "access", lambda path, mode: False)  # the tests may run as root, who may read all of them
    refusal = CliRunner().invoke(app, ["inventory", "--vcenter", "sim:lab", "--ca-file", str(file)])
    assert (refusal.exit_code, refusal.stdout) == (2, "")
    assert "is not readable" in refusal.stderr


@pytest.mark.long
def test_a_command_ends_without_a_look_for_cycles() -> None:
    # what is registered first is called last
    code = (
        "import atexit, gc, sys\natexit.register(lambda: print(gc.get_freeze_count()))\nsys.argv = ['gpuops', '-V']\n"
        "from gpuops.cli import main\nmain()"
    )
    process = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, encoding="utf-8", timeout=60, check=True
    )
    version, frozen = process.stdout.splitlines()
    assert version.startswith("gpuops ")
    assert int(frozen) > 10_000


def _loaded_by(arguments: str, **environ: str) -> set[str]:
    """The modules that a command has loaded at its end, in a process of its own."""
    code = (
        "import sys\nfrom gpuops.cli.app import app\n"
        f"try:\n    app({arguments})\nexcept SystemExit as end:\n    assert not end.code\n"
        "    print(*sys.modules, file=sys.stderr)"
    )
    process = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        encoding="utf-8",
        timeout=60,
        check=True,
        env={**os.environ, **environ},
    )
    return set(process.stderr.splitlines()[-1].split())


@pytest.mark.long
@pytest.mark.parametrize("option", ["--version", "-V"])
def test_version(option: str) -> None:
    assert run(option).stdout == f"gpuops {__version__} (gpuops-vsphere)\n"


@pytest.mark.parametrize("words", ["gpuops", *sorted({leaf.rpartition(" ")[0] for leaf in LEAVES} - {"gpuops"})])
def test_a_list_of_commands_cuts_no_summary_and_fits_80_columns(words: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    arguments = ["help", "--all"] if words == "gpuops" else [*words.split()[1:], "--help"]
    help_text = CliRunner().invoke(app, arguments, prog_name="gpuops").stdout
    commands = help_text[help_text.index("\nCommands") :]
    assert "..." not in commands and "\u2026" not in commands
    assert max(map(len, commands.splitlines())) <= 80


@pytest.mark.long
@pytest.mark.parametrize("words", CONNECTED)
def test_how_vcenter_is_reached_is_listed_once(words: str) -> None:
    """In `gpuops help --all`; the help of a command names these options, and comes after what is its own."""
    help_text = CliRunner().invoke(app, [*words.split()[1:], "--help"], prog_name="gpuops").stdout
    assert not re.findall(r"^  --(?:ca-file|thumbprint|proxy|reader) [A-Z<]", help_text, re.MULTILINE)
    assert help_text.index("\nOptions:") < help_text.index("\nConnection:") < help_text.index("\nOutput:")
    assert all(re.search(rf"{parameter.opts[0]}[\s:,]", help_text) for parameter in LEAVES[words].params)
    assert "gpuops help targets" in help_text


def test_the_page_about_the_connection_has_each_of_its_options() -> None:
    page = (Path(__file__).resolve().parents[2] / "gpuops" / "manual" / "targets.md").read_text(encoding="utf-8")
    options = {field.name: f"--{field.name.replace('_', '-')}" for field in fields(CommonOptions)}
    assert [option for option in options.values() if f"`{option}" not in page] == []


@pytest.mark.long
def test_what_people_need_first_is_listed_first() -> None:
    rotate: Any = typer.main.get_command(app).commands["rotate"]  # type: ignore[attr-defined]
    assert list(rotate.commands)[:4] == ["night", "day", "status", "plan"]


@pytest.mark.parametrize("words", ALL)
def test_every_command_has_help(words: str) -> None:
    result = CliRunner().invoke(app, [*words.split()[1:], "--help"], prog_name="gpuops")
    assert result.exit_code == 0
    assert result.stdout.startswith("Usage: gpuops")


@pytest.mark.long
@pytest.mark.parametrize("words", LEAVES)
def test_every_command_shows_an_example_of_itself(words: str) -> None:
    examples = re.findall(rf"^ *(?:Example: )?({words}(?: .*?)?)(?: &)?$", LEAVES[words].help, re.MULTILINE)
    assert examples, f"{words} has no example"
    for example in examples:
        command_line, _, _ = example.partition(" -- ")  # what follows is another program's command
        assert_options_exist(command_line.split()[len(words.split()) :], LEAVES[words])


def assert_options_exist(arguments: Sequence[str], command: Any) -> None:
    known_options = {name for parameter in command.params for name in (*parameter.opts, *parameter.secondary_opts)}
    unknown = [word for word in arguments if word.startswith("--") and word not in known_options]
    assert not unknown


def test_the_help_of_the_program_is_a_screen_with_the_commands_of_every_day_first() -> None:
    help_text = CliRunner().invoke(app, ["--help"], prog_name="gpuops", env={"COLUMNS": "80"}).stdout
    lines = help_text.splitlines()
    assert len(lines) <= 45 and max(map(len, lines)) <= 80
    assert lines.index("Every day:") < 6
    named = [*EVERYDAY, *(name for names in BY_SUBJECT.values() for name in names)]
    assert len(named) == len(set(named)) and set(named) < set(SHORT_HELP)
    assert [name for name in named if not re.search(rf"(?<![\w-]){name}(?![\w-])", help_text)] == []


def test_help_all_names_every_command_and_every_option_of_the_program() -> None:
    help_text = CliRunner().invoke(app, ["help", "--all"], prog_name="gpuops").stdout
    assert [name for name in SHORT_HELP if f"\n  {name} " not in help_text] == []
    options = [option for parameter in typer.main.get_command(app).params for option in parameter.opts]
    assert [option for option in options if option not in help_text] == []


def test_a_command_about_one_vm_takes_its_name_without_the_option() -> None:
    words = ("--profile", "a100-3-20c", "--vcenter", "sim:lab", "--dry-run")
    named = run_app("attach", "--vm", "ml-07", *words)
    assert (named.exit_code, run_app("attach", "ml-07", *words).stdout) == (0, named.stdout)
    assert run_app("attach", "--help").stdout.startswith("Usage: gpuops attach [VM] [OPTIONS]")
    twice = run_app("attach", "ml-07", "--vm", "ml-08", *words)
    assert (twice.exit_code, twice.stderr) == (2, "error: the VM is named twice: ml-07 and --vm\nnext: name it once\n")
    assert run_app("detach", "--all", "ml-07").exit_code == 2, "the name stands right behind the command"


def test_every_option_is_explained() -> None:
    silent = [
        f"{words} {parameter.opts[0]}"
        for words, command in ALL.items()
        for parameter in command.params
        if not getattr(parameter, "help", None)
    ]
    assert not silent


@pytest.mark.long
def test_in_json_an_error_is_a_document_too() -> None:
    process = run("inventory", "--output", "json", "--bogus")
    assert '"kind": "error"' in process.stdout
    assert '"exit_code": 2' in process.stdout
    assert process.stderr.startswith("error: No such option")


@pytest.mark.long
@pytest.mark.parametrize("words", ["", "rotate", "sim"])
def test_a_group_without_a_command_shows_its_help(words: str) -> None:
    usage = run_app(*words.split())
    assert (usage.exit_code, usage.stdout) == (2, "")
    assert usage.stderr.startswith(f"Usage: gpuops {words}".rstrip())
    assert ("Every day:" if not words else "\nCommands:\n") in usage.stderr


@pytest.mark.parametrize(
    "words",
    ["inventory -o json --bogus", "--output=json bogus", "rotate night -ojson", "inventory --output json --vms=x"],
)
def test_in_json_a_wrong_option_is_a_document_too(words: str) -> None:
    refusal = run_app(*words.split())
    assert refusal.exit_code == 2
    assert json.loads(refusal.stdout)["kind"] == "error"


@pytest.mark.long
def test_options_may_stand_before_the_command() -> None:
    refusal = run_app("--output", "json", "--vcenter", "prod", "inventory")
    assert "no target 'prod'" in refusal.stdout


class TestGuarded:
    """What becomes of an exception."""

    @pytest.mark.parametrize("error", [Refused("no", hint="do this"), Locked("busy"), GpuopsError("bug")])
    def test_an_error_of_ours_ends_with_its_code(self, error: GpuopsError, capsys: pytest.CaptureFixture[str]) -> None:
        def command() -> None:
            raise error

        assert run_guarded(command) == error.exit_code
        captured = capsys.readouterr()
        assert captured.err == f"error: {error.message}\n" + (f"next: {error.hint}\n" if error.hint else "")

    def test_a_bug_is_one_line(self, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.delenv("GPUOPS_DEBUG", raising=False)
        assert run_guarded(lambda: NOTHING["x\n\x1b"]) == 1
        captured = capsys.readouterr()
        assert captured.err.startswith("error: internal error: KeyError")
        assert captured.err.count("\n") == 2
        assert "\x1b" not in captured.err
        monkeypatch.setenv("GPUOPS_DEBUG", "1")
        assert run_guarded(lambda: NOTHING["x"]) == 1
        assert "Traceback" in capsys.readouterr().err

    def test_ctrl_c(self, capsys: pytest.CaptureFixture[str]) -> None:
        def command() -> None:
            raise KeyboardInterrupt

        assert run_guarded(command) == INTERRUPTED
        assert capsys.readouterr().err == "interrupted\n"


@pytest.mark.parametrize("arguments", ["--help", "sim serve --help"])
def test_a_reader_that_goes_away_is_not_complained_about(arguments: str) -> None:
    process = subprocess.run(
        f"{shlex.quote(sys.executable)} -m gpuops {arguments} | true; echo ${{PIPESTATUS[0]}}",
        shell=True,
        executable="/bin/bash",
        capture_output=True,
        encoding="utf-8",
        timeout=60,
        check=False,
    )
    assert process.stderr == ""
    assert process.stdout == "141\n"


@pytest.mark.long
@pytest.mark.parametrize("form", ["text", "json", "yaml"])
def test_a_result_that_stdout_does_not_take_is_said_in_one_line(saved_lab: Path, form: str) -> None:
    """Text that fills no buffer fails when it is flushed, a long document while it is written."""
    words = [sys.executable, "-m", "gpuops", "inventory", "--inventory", str(saved_lab), "--output", form]
    with Path("/dev/full").open("w", encoding="utf-8") as full:
        process = subprocess.run(words, stdout=full, stderr=subprocess.PIPE, encoding="utf-8", timeout=60, check=False)
    assert process.stderr.splitlines()[0] == "error: the result cannot be written: No space left on device"
    assert len(process.stderr.splitlines()) == 2
    assert process.returncode == 141


@pytest.mark.long
@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
def test_streams_may_be_closed(closed: str) -> None:
    process = subprocess.run(
        f"{shlex.quote(sys.executable)} -m gpuops inventory --vcenter no-such-target {closed}",
        shell=True,
        capture_output=True,
        encoding="utf-8",
        timeout=60,
        check=False,
    )
    assert process.returncode == 2
    assert process.stdout == ""
    assert process.stderr == "" or process.stderr.startswith("error: no target")


@pytest.mark.long
def test_sigterm_ends_with_its_own_code() -> None:
    code = (
        "import os, signal\nfrom gpuops.cli import app\n"
        "app.app = lambda **_: os.kill(os.getpid(), signal.SIGTERM) or __import__('time').sleep(30)\napp.main()"
    )
    process = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, encoding="utf-8", timeout=60, check=False
    )
    assert (process.returncode, process.stderr) == (128 + signal.SIGTERM, "")


@pytest.mark.long
def test_the_demo_says_first_what_is_wrong_with_its_policy() -> None:
    refusal = run_app("demo", "--policy", "/nonexistent.yaml")
    assert (refusal.exit_code, refusal.stdout) == (2, "")
    assert refusal.stderr.splitlines() == [
        f"error: /nonexistent.yaml cannot be read: {os.strerror(errno.ENOENT)}",
        "next: check the path",
    ]
