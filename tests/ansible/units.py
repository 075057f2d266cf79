"""Units of systemd, read, and executed as systemd does it."""

from __future__ import annotations

import shlex
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path


def unit_of(path: Path) -> dict[str, list[str]]:
    """The values of each key of a unit, in their order."""
    unit: dict[str, list[str]] = {}
    for line in path.read_text(encoding="utf-8").splitlines():
        key, equals, value = line.partition("=")
        if equals and not line.startswith("#"):
            unit.setdefault(key, []).append(value)
    return unit


def execute_unit(
    unit: Mapping[str, list[str]], folder: Path, variables: Mapping[str, str], **more_variables: str
) -> subprocess.CompletedProcess[str]:
    """What a unit's ExecStart does, with the environment and credentials that it names, and `own` of the machine."""
    credentials = folder / "credentials"
    shutil.rmtree(credentials, ignore_errors=True)
    credentials.mkdir(mode=0o700)
    for line in unit["LoadCredential"]:
        name, _, path = line.partition(":")
        shutil.copy(path.replace("%%", "%"), credentials / name)
    environ = dict(shlex.split(line)[0].replace("%%", "%").split("=", 1) for line in unit["Environment"])
    return subprocess.run(
        [word.replace("%%", "%").replace("$$", "$") for word in shlex.split(unit["ExecStart"][0])],
        env={**variables, "CREDENTIALS_DIRECTORY": str(credentials), **environ, **more_variables},
        cwd=folder,
        capture_output=True,
        encoding="utf-8",
        check=False,
    )
