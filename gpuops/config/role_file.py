"""Reads the YAML files that say which privileges accounts of gpuops need. `templates/roles/` holds such files."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Final, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from gpuops.errors import PolicyError
from gpuops.files.wrong_value import reason
from gpuops.files.yaml_file import parse_yaml, read_text
from gpuops.model.vcenter.role import RoleWish

_HINT: Final = "templates/roles/night.yaml shows every key, with comments"
_Privilege = Annotated[str, Field(pattern=r"^[A-Za-z]+(\.[A-Za-z]+)+$", max_length=120)]


class RoleSection(BaseModel):
    """One role."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, hide_input_in_errors=True)

    name: str = Field(min_length=1, max_length=80, pattern=r"^[^\x00-\x1f%/\\]+$")
    where: str = Field(min_length=1, max_length=200)
    privileges: list[_Privilege] = Field(min_length=1)


class RoleFile(BaseModel):
    """The whole file."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, hide_input_in_errors=True)

    version: Literal[1]
    roles: list[RoleSection] = Field(min_length=1)


def load_roles(path: Path) -> tuple[RoleWish, ...]:
    """The roles in this file, in its order. Raises PolicyError, one line: file, place, reason."""
    try:
        found = RoleFile.model_validate(parse_yaml(read_text(path), str(path)))
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(map(str, first["loc"])) or "the file"
        raise PolicyError(f"{path}: {place}: {reason(first)}", hint=_HINT) from None
    names = [role.name for role in found.roles]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise PolicyError(f"{path}: the role {twice[0]!r} is there twice", hint=_HINT)
    return tuple(RoleWish(role.name, role.where, frozenset(role.privileges)) for role in found.roles)
