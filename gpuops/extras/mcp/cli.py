"""`gpuops mcp`: tools for an AI assistant that only read and plan."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from gpuops.console.options import CONNECTION, CommonOptions
from gpuops.console.output import OutputFormat
from gpuops.console.spread import spread
from gpuops.errors import UsageError


@spread
def mcp(
    context: typer.Context,
    common: CommonOptions,
    policy: Annotated[
        Path | None, typer.Option(metavar="FILE", help="The rotation policy that tools for nights use.")
    ] = None,
) -> None:
    """Let an AI assistant read this vCenter and plan on it, by the Model Context Protocol. Changes nothing.

    The assistant's program starts this command and talks to it over stdin and stdout. Each tool returns the document of
    a command of gpuops; only an admin can apply a plan. See gpuops help python.

    \b
    Examples:
      gpuops mcp --vcenter sim:lab
      gpuops mcp --vcenter prod --policy templates/policy.yaml
    """
    _require_sdk()
    if common.password_stdin:
        raise UsageError(
            "gpuops mcp does not work with --password-stdin: it uses stdin for its protocol",
            hint="use --password-file FILE",
        )
    if common.format is not OutputFormat.TEXT:
        raise UsageError(
            "gpuops mcp does not work with --output: it uses stdout for its protocol",
            hint="remove --output: tools always return JSON",
        )
    if policy is not None:
        from gpuops.config.policy import load_policy

        load_policy(policy)  # only checked here: each call reads the file again

    import anyio

    from gpuops.extras.mcp.mcp_server import ToolServer, connection_words, tool_commands

    root = context.find_root().command
    connection = {
        parameter.name: getattr(common, parameter.name)
        for parameter in root.params
        if getattr(parameter, "rich_help_panel", None) == CONNECTION
    }
    anyio.run(ToolServer(tool_commands(root), connection_words(connection), policy).serve)


def _require_sdk() -> None:
    """Raise UsageError if the extra is not installed."""
    from importlib.util import find_spec

    if find_spec("mcp") is None:
        from gpuops.distribution import install_extra

        raise UsageError("gpuops mcp needs the Python package mcp, and it is not installed", hint=install_extra("mcp"))
