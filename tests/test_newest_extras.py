"""The newest version of each optional package in its range: commands that use it print their document and nothing else.

The lock file holds the versions that the other tests run with; `pip install gpuops-vsphere[...]` brings the newest.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Final

import pytest

from tests.test_packaging import wheel

__all__ = ["wheel"]
ROOT: Final = Path(__file__).resolve().parents[1]
MODULES: Final = (
    "keyring", "psycopg", "procrastinate", "asyncssh", "apprise", "httpx", "starlette", "uvicorn", "highspy", "sklearn",
    "mcp",
)  # fmt: skip
COMMANDS: Final = (
    "inventory",
    "place --optimize --file requests.csv",
    "defrag --dry-run",
    "rotate night --policy policy.yaml --dry-run",
    "doctor",
)
REQUESTS: Final = "name,profile,vcpu,memory\n" + "".join(f"w-{number},a40-8q,2,8GiB\n" for number in range(6))


@pytest.mark.long
@pytest.mark.timeout(900)
def test_commands_print_their_document_alone(wheel: Path, tmp_path: Path) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    uv, python = str(Path(sys.executable).with_name("uv")), str(tmp_path / "venv" / "bin" / "python")

    def run(*words: str) -> str:
        process = subprocess.run(words, cwd=tmp_path, capture_output=True, encoding="utf-8", check=False)
        assert process.returncode in {0, 3, 4}, f"{words}: {process.stdout}{process.stderr}"
        return process.stdout

    run(uv, "venv", "--quiet", "--python", sys.executable, "venv")
    run(uv, "pip", "install", "--quiet", "--python", python, f"{wheel}[{','.join(project['optional-dependencies'])}]")
    for module in MODULES:
        assert run(python, "-c", f"import {module}") == ""
    (tmp_path / "requests.csv").write_text(REQUESTS, encoding="utf-8")
    policy = ROOT / "gpuops" / "sim" / "scenarios" / "lab-policy.yaml"
    (tmp_path / "policy.yaml").write_text(policy.read_text(encoding="utf-8"), encoding="utf-8")
    for command in COMMANDS:
        printed = run(python, "-m", "gpuops", *command.split(), "--output", "json", "--vcenter", "sim:lab")
        assert json.loads(printed)["schema_version"]
