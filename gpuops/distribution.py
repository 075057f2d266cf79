"""The name of the package for pip, a check for another project of the same name, and how to install extras.

The name `gpuops` on the Python Package Index belongs to another project, whose import package and command have our
names (versions 0.1.0 and 0.1.1). In one environment, each overwrites files of the other, so neither matches its lock.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Final

from gpuops.errors import UsageError

NAME: Final = "gpuops-vsphere"


def refuse_other_project(folder: Path = Path(__file__).parents[1]) -> None:
    """Raise UsageError if the other project is installed in our folder: pip leaves a `gpuops-VERSION.dist-info`."""
    if next(folder.glob("gpuops-*.dist-info"), None) is not None:
        raise UsageError(
            f"another project, also named gpuops, is installed in {folder}: its files and ours overwrite each other",
            hint="pip uninstall --yes gpuops && pip install --force-reinstall --no-deps SOURCE; "
            f"SOURCE is the wheel that {NAME} came from, or {NAME} where your index has it",
        )


EXTRAS: Final = {
    "diagnose": "scikit-learn",
    "fleet": "procrastinate psycopg[binary,pool]",
    "horizon": "httpx",
    "keyring": "keyring",
    "mcp": "mcp",
    "notify": "apprise",
    "optimize": "highspy",
    "postgresql": "psycopg[binary]",
    "ssh": "asyncssh",
    "web": "starlette uvicorn",
}
"""The packages that each extra adds. Hints name these alone: an index need not have gpuops itself."""


def install_extra(extra: str, prefix: Path = Path(sys.prefix)) -> str:
    """Return the command that adds the packages of an extra, for the tool that installed gpuops: pipx, uv or pip.

    >>> install_extra("ssh", Path("/home/me/.local/share/pipx/venvs/gpuops-vsphere"))
    'pipx inject gpuops-vsphere asyncssh'
    """
    package = " ".join(f"'{name}'" if "[" in name else name for name in EXTRAS[extra].split())
    if (prefix / "pipx_metadata.json").is_file() or prefix.parts[-3:-1] == ("pipx", "venvs"):
        return f"pipx inject {prefix.name} {package}"
    if (prefix / "uv-receipt.toml").is_file():
        package = package.replace(" ", " --with ")
        return f"uv tool install --with {package} SOURCE, with the SOURCE that it was installed from"
    return f"pip install {package}, in the environment {prefix}"
