"""README and manual cannot drift: their console blocks are played, in order, and must print what stands there.

`pytest tests/test_docs.py --refresh-golden` writes their output anew, to be reviewed as a diff.
"""

from __future__ import annotations

import os
import pyexpat
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pytest_mock import MockerFixture
from typer.main import get_command
from typer.testing import CliRunner

from gpuops.cli.app import app
from gpuops.sim.server import start
from gpuops.sim.wire import sim_client

ROOT = Path(__file__).resolve().parents[1]
README = ROOT / "README.md"
MANUAL = sorted(str(page.relative_to(ROOT)) for page in (ROOT / "gpuops" / "manual").glob("*.md"))
BLOCK = re.compile(r"```console\n(.*?)```", re.DOTALL)
NIGHT = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\dZ")
SHOWN_NIGHT = "2026-11-21T20:00Z"
MOST_LINES_OF_THE_README = 119


@pytest.fixture
def lab(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mocker: MockerFixture) -> Iterator[None]:
    """What a reader has who types the lines after `gpuops template write`, in a clone or anywhere else: a simulated
    vCenter, and no other variable says anything.

    Only its time is stepped, so that the pages show the same on every machine.
    """
    with start("lab", clock="stepped") as server:
        ready = tmp_path / "lab.json"
        sim_client.write(ready, sim_client.of(server))
        variables = {
            "PATH": "/usr/bin:/bin",
            "HOME": str(tmp_path),
            "GPUOPS_VCENTER": f"sim@{ready}",
            "GPUOPS_STATE_DIR": str(tmp_path / "state"),
            "GPUOPS_SIM_CLOCK": "stepped",
        }
        mocker.patch.dict(os.environ, variables, clear=True)
        mocker.patch.object(pyexpat, "version_info", (2, 7, 3))  # `doctor` reports an older one
        (tmp_path / "anywhere").mkdir()
        monkeypatch.chdir(tmp_path / "anywhere")
        CliRunner().invoke(app, ["template", "write"])
        yield


def _play_command(command: str) -> str:
    completed = CliRunner().invoke(app, shlex.split(command)[1:])
    assert completed.exit_code in (0, 3), f"{command}: {completed.exit_code}\n{completed.stderr}{completed.exc_info}"
    return NIGHT.sub(SHOWN_NIGHT, completed.stdout or completed.stderr)


@pytest.mark.quick_cases(38)
@pytest.mark.parametrize("name", ["README.md", *MANUAL])
@pytest.mark.usefixtures("lab")
def test_the_docs_show_what_the_commands_print(name: str, request: pytest.FixtureRequest) -> None:
    page = ROOT / name
    text = page.read_text(encoding="utf-8")

    def replay(block: re.Match[str]) -> str:
        commands = [line for line in block[1].splitlines() if line.startswith("$ ")]
        session = "".join(f"{line}\n{_play_command(line[2:])}" for line in commands)
        return f"```console\n{session}```"

    played = BLOCK.sub(replay, text)
    if request.config.getoption("--refresh-golden"):
        page.write_text(played, encoding="utf-8")
    assert played == page.read_text(encoding="utf-8"), "pytest tests/test_docs.py --refresh-golden renews the page"


def _commands_table() -> str:
    """The table of `gpuops/manual/commands.md`: each command with the first clause of its help."""
    rows = []
    for path in sorted(_commands()):
        first = re.split(r"[.:;]\s|\.$", (_command(path).callback.__doc__ or "").strip())[0]
        rows.append(f"| `{path}` | {first} |\n")
    return f"| Command | Does |\n|---|---|\n{''.join(rows)}"


def _command(path: str) -> Any:
    command: Any = get_command(app)
    for word in path.split()[1:]:
        command = command.commands[word]
    return command


def _commands() -> dict[str, set[str]]:
    """Every command of gpuops, as typed, with its options."""
    options_by_path = {}

    def walk(command: object, path: str) -> None:
        children = getattr(command, "commands", None)
        if children and getattr(command, "invoke_without_command", False):  # it does something by itself
            options_by_path[path] = {option for parameter in command.params for option in parameter.opts}  # type: ignore[attr-defined]
        if children:
            for name, child in children.items():
                walk(child, f"{path} {name}")
            return
        options_by_path[path] = {option for parameter in command.params for option in parameter.opts}  # type: ignore[attr-defined]

    walk(get_command(app), "gpuops")
    return options_by_path


def test_the_manual_lists_each_command_with_its_help(request: pytest.FixtureRequest) -> None:
    page = ROOT / "gpuops" / "manual" / "commands.md"
    text, table = page.read_text(encoding="utf-8"), _commands_table()
    head, begin, remainder = re.split(r"(<!-- commands:.*? -->\n)", text)
    written, end, tail = remainder.partition("<!-- end of commands -->")
    if request.config.getoption("--refresh-golden"):
        page.write_text(f"{head}{begin}{table}{end}{tail}", encoding="utf-8")
        written = table
    assert written == table, "pytest tests/test_docs.py --refresh-golden renews the page"


def test_the_help_of_each_command_says_what_it_does() -> None:
    assert [path for path in _commands() if not _command(path).help] == []


def test_the_readme_is_a_few_screens_and_leads_to_every_page() -> None:
    text = README.read_text(encoding="utf-8")
    assert len(text.splitlines()) <= MOST_LINES_OF_THE_README
    links = re.findall(r"\[([\w-]+)\]\(([^)#:]+)\)", text)
    assert [page for page in MANUAL if (Path(page).stem, page) not in links] == []
    assert [target for _, target in links if not (ROOT / target).exists()] == []


PAGES = ["README.md", "CONTRIBUTING.md", "gpuops/sim/README.md", "templates/policy.yaml", "templates/requests.yaml"]


@pytest.mark.parametrize("name", [*PAGES, *MANUAL])
def test_every_command_line_in_the_docs_is_one_gpuops_has(name: str) -> None:
    commands = _commands()
    lines = re.findall(
        # at the beginning of a line, after a prompt, in code, or after the five fields of a crontab
        r"(?:^(?:(?:[\d*,/-]+ +){5})?|[`$#] *)(gpuops (?!\{)[a-z][^`\n&]*)",
        (ROOT / name).read_text(encoding="utf-8"),
        re.MULTILINE,
    )
    for line in lines:
        words = line.partition(" -- ")[0].split()  # what follows is another program's command
        longest_path = max((path for path in commands if f"{line} ".startswith(f"{path} ")), key=len, default=None)
        if longest_path is None:
            assert words[0] == "gpuops"
            assert not any(word.startswith("--") for word in words), f"no such command: {line}"
            continue
        unknown = [
            word for word in words if word.startswith("--") and word.partition("=")[0] not in commands[longest_path]
        ]
        assert unknown == [], line
    assert lines or name == "CONTRIBUTING.md"


@pytest.mark.usefixtures("lab")
def test_the_program_in_the_manual_prints_what_stands_below_it(
    capsys: pytest.CaptureFixture[str], request: pytest.FixtureRequest
) -> None:
    page = ROOT / "gpuops" / "manual" / "python.md"
    text = page.read_text(encoding="utf-8")
    [(program, expected)] = re.findall(r"```python\n(.*?)```\n\nIt prints:\n\n```text\n(.*?)```", text, re.DOTALL)
    exec(compile(program, page.name, "exec"), {"__name__": "__main__"})
    printed = capsys.readouterr().out
    if request.config.getoption("--refresh-golden"):
        page.write_text(text.replace(f"```text\n{expected}", f"```text\n{printed}"), encoding="utf-8")
        expected = printed
    assert printed == expected, "pytest tests/test_docs.py --refresh-golden renews the page"
