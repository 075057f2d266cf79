"""Every example in the help of a command that names a simulated vCenter is typed, and does what it shows."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any, Final

import pytest
from typer.main import get_command
from typer.testing import CliRunner

from gpuops.cli.app import app

ROOT = Path(__file__).resolve().parents[3]
REFUSED: Final = {"gpuops rotate night": "outside the window"}
"""By the command, what its example may be refused for: the night of the policy, at another time of day.

Its help says so.
"""


SERVICE: Final = "gpuops serve"
"""It goes on until it is stopped: `tests/cli/services/test_serve.py` starts it as the example does."""


def examples() -> list[str]:
    """The command lines in the help of all commands that ask a simulated vCenter, and end."""
    lines: list[str] = []

    def walk(command: Any) -> None:
        lines.extend(re.findall(r"^ *(?:Example: )?(gpuops .*sim:[a-z]+.*)$", command.help or "", re.MULTILINE))
        for child in getattr(command, "commands", {}).values():
            walk(child)

    walk(get_command(app))
    return [line for line in dict.fromkeys(lines) if not line.startswith(SERVICE)]


QUICK: Final = re.compile(r"gpuops (attach|mode|passthrough|scheduler set) .*sim:lab")
LINES: Final = [
    pytest.param(line, marks=() if QUICK.match(line) else pytest.mark.long, id=line.removeprefix("gpuops "))
    for line in examples()
]


@pytest.mark.parametrize("line", LINES)
def test_an_example_in_help_runs_on_the_scenario_that_it_names(
    line: str, clean: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (clean / "templates").symlink_to(ROOT / "templates")
    monkeypatch.chdir(clean)
    completed = CliRunner().invoke(app, shlex.split(line)[1:], prog_name="gpuops")
    excuse = next((reason for verb, reason in REFUSED.items() if line.startswith(verb)), None)
    if completed.exit_code == 3 and excuse is not None:
        assert excuse in completed.output
        return
    assert excuse is None or completed.exit_code == 0
    # they end with 3 or 4 where something stands in the way, and say so
    allowed = (0, 3, 4) if line.startswith(("gpuops doctor", "gpuops readiness --strict")) else (0,)
    assert completed.exit_code in allowed, f"{completed.exit_code}\n{completed.output}"
