"""Reads site files: one YAML file, or all of a directory."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from gpuops.config.decoding import read_as
from gpuops.config.policy import load_policy
from gpuops.errors import PolicyError
from gpuops.extras.declare.entries import SiteFile
from gpuops.files.yaml_file import parse_yaml, read_text

_HINT: Final = "templates/site.yaml shows every key, with comments"


def load_site(path: Path) -> SiteFile:
    """Return the content of this file, or of all `*.yaml` files of this directory in the order of their names.

    Raises PolicyError: one line with file, key and reason, also for a rotation policy that the file names.
    """
    paths = sorted(path.glob("*.yaml")) if path.is_dir() else [path]
    if not paths:
        raise PolicyError(f"the directory {path} has no file *.yaml", hint=f"add a site file to it: {_HINT}")
    files = [parse_site(read_text(file_path), str(file_path)) for file_path in paths]
    policies = [path.parent / policy for file, path in zip(files, paths, strict=True) for policy in file.policies]
    for policy in policies:
        load_policy(policy)
    return SiteFile(
        1,
        tuple(entry for file in files for entry in file.hosts),
        tuple(entry for file in files for entry in file.vms),
        tuple(map(str, policies)),
    )


def decode_site(content: object, name: str) -> SiteFile:
    """Return the site file of this decoded YAML; errors call it `name`. Raises PolicyError as `load_site`.

    Paths of rotation policies are relative to the working directory.
    """
    file = read_as(SiteFile, content, name, _HINT)
    for policy in file.policies:
        load_policy(Path(policy))
    return file


def parse_site(text: str, name: str) -> SiteFile:
    """Return the site file of a YAML text; errors call it `name`. Raises PolicyError."""
    return read_as(SiteFile, parse_yaml(text, name), name, _HINT)
