"""Reads the YAML files that say which privileges accounts of gpuops need. `templates/roles/` holds such files."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Final, Literal

from msgspec import Meta

from gpuops.config.decoding import Section, read_as
from gpuops.errors import PolicyError
from gpuops.files.yaml_file import parse_yaml, read_text
from gpuops.model.vcenter.login import RoleWish

_HINT: Final = "templates/roles/night.yaml shows every key, with comments"


class RoleFile(Section):
    """The whole file."""

    version: Literal[1]
    roles: Annotated[tuple[RoleWish, ...], Meta(min_length=1)]


def load_roles(path: Path) -> tuple[RoleWish, ...]:
    """Return the roles in this file, in its order. Raises PolicyError, one line: file, place, reason."""
    role_file = read_as(RoleFile, parse_yaml(read_text(path), str(path)), str(path), _HINT)
    names = [role.name for role in role_file.roles]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise PolicyError(f"{path}: two roles are called {twice[0]!r}", hint=_HINT)
    return role_file.roles
