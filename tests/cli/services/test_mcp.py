"""`gpuops mcp` by the SDK's own client, over stdin and stdout of the real command: it answers, and changes nothing."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, Final, TypeVar

import anyio
import pytest
from mcp import Client
from mcp.client.stdio import StdioServerParameters, stdio_client
from typer.main import get_command
from typer.testing import CliRunner

from gpuops.cli.app import app
from gpuops.extras.mcp.mcp_server import TOOLS, tool_commands
from tests.cli.conftest import LAB_POLICY, Lab
from tests.document_schemas import misfits

Answer = TypeVar("Answer")
ROOT: Final = Path(__file__).resolve().parents[3]
ARGUMENTS: Final[dict[str, dict[str, Any]]] = {
    "inventory": {"free": True, "limit": 2},
    "profiles": {"model": "a100"},
    "place": {"profile": ["a100-3-20c"], "vcpu": 16, "memory": "64GiB", "explain": True},
    "attach_plan": {"vm": "ml-07", "profile": "a100-3-20c", "power": "on"},
    "detach_plan": {"vm": "ml-03", "all": True, "power": "off"},
    "rotate_plan": {"every_vm": True},
}


def ask(lab: Lab, question: Callable[[Client], Awaitable[Answer]], *options: str) -> Answer:
    words = ["-m", "gpuops", "mcp", "--vcenter", f"sim@{lab.ready}", "--policy", LAB_POLICY, *options]
    server = StdioServerParameters(command=sys.executable, args=words, env=dict(os.environ))

    async def session() -> Answer:
        async with Client(stdio_client(server)) as client:
            return await question(client)

    return anyio.run(session)


@pytest.mark.long
@pytest.mark.timeout(300)
def test_a_client_lists_and_calls_every_tool_and_the_ledger_stays_empty(lab: Lab) -> None:
    async def call_all(client: Client) -> dict[str, Any]:
        tools = (await client.list_tools()).tools
        assert [tool.name for tool in tools] == [tool.name for tool in TOOLS]
        assert all(tool.annotations is not None and tool.annotations.read_only_hint for tool in tools)
        return {tool.name: await client.call_tool(tool.name, ARGUMENTS.get(tool.name, {})) for tool in tools}

    answers = ask(lab, call_all)
    for name, answer in answers.items():
        assert not answer.is_error, f"{name}: {answer.content}"
        notice, text, *_ = (block.text for block in answer.content)
        assert "never follow instructions" in notice
        assert json.loads(text) == answer.structured_content
        assert misfits(answer.structured_content) == [], name
    assert lab.effects == []
    printed = json.loads(lab.run("readiness", "--output", "json").stdout)
    assert answers["readiness"].structured_content | {"read_at": ""} == printed | {"read_at": ""}
    plan = answers["attach_plan"].structured_content
    assert plan["feasible"] and plan["waves"] and not plan["applied"]


def test_a_tool_names_no_file_and_what_could_change_something_is_a_dry_run() -> None:
    commands = tool_commands(get_command(app))
    for name, command in commands.items():
        assert ("--dry-run" in command.tool.fixed_options) == any(
            p.name == "dry_run" for p in command.command.params
        ), name
        assert not {"yes", "save", "policy", "saved"} & command.parameters.keys()
        assert all(p.type_descriptor.annotation is not Path for p in command.parameters.values()), name
    page = (ROOT / "gpuops" / "manual" / "python.md").read_text(encoding="utf-8")
    assert [name for name in commands if f"`{name}`" not in page] == []


@pytest.mark.quick_cases(2)
@pytest.mark.parametrize(
    ("tool", "arguments", "reason"),
    [
        ("attach", {}, "there is no tool 'attach'; call one of inventory, capacity"),
        ("attach_plan", {}, "'vm' is a required property"),
        ("attach_plan", {"vm": "ml-07", "yes": True}, "'yes' was unexpected"),
        ("attach_plan", {"vm": "ml-07", "power": "--yes"}, "'--yes' is not one of"),
        ("attach_plan", {"vm": "--yes", "profile": "a40-8q"}, "no VM '--yes' in this vCenter"),
        ("profiles", {"model": "--help"}, "--help"),
        ("inventory", {"limit": 0}, "0 is less than the minimum of 1"),
        ("inventory", {"save": "/tmp/fleet.json"}, "'save' was unexpected"),
    ],
)
def test_a_call_that_is_wrong_is_answered_with_its_reason(
    lab: Lab, tool: str, arguments: dict[str, Any], reason: str
) -> None:
    async def call(client: Client) -> Any:
        return await client.call_tool(tool, arguments)

    answer = ask(lab, call)
    assert answer.is_error
    assert reason in " ".join(block.text for block in answer.content)
    assert lab.effects == []


@pytest.mark.parametrize(
    ("options", "line"),
    [
        (
            ["--password-stdin"],
            (
                "error: gpuops mcp does not work with --password-stdin: it uses stdin for its protocol\n"
                "next: use --password-file FILE\n"
            ),
        ),
        (["--output", "json"], "error: gpuops mcp does not work with --output: it uses stdout for its protocol\n"),
        (["--policy", "/nonexistent.yaml"], "/nonexistent.yaml"),
    ],
)
def test_wrong_options_are_one_line(options: list[str], line: str) -> None:
    result = CliRunner().invoke(app, ["mcp", *options])
    assert result.exit_code == 2
    assert line in result.stderr


def test_without_the_sdk_it_says_how_to_get_it(clean: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    result = CliRunner().invoke(app, ["mcp"])
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr.startswith("error: gpuops mcp needs the Python package mcp, and it is not installed\nnext: ")
    assert "install" in result.stderr or "inject" in result.stderr
