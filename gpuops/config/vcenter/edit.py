"""Writes the configuration file: a first one from the template, or single keys, with all comments kept.

Every new text is read as other commands read it before it is written. Passwords are refused: they do not belong into a
file of settings, and every user of the machine can read a command line.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Final

from gpuops.config.decoding import keys_of
from gpuops.config.vcenter.destination import SIMULATED, Address
from gpuops.config.vcenter.layers import Flags
from gpuops.config.vcenter.sources import resolve
from gpuops.config.vcenter.targets import HELP_PAGES, TABLES, Configuration, NamedTarget, parsed_configuration
from gpuops.errors import TargetError, UsageError
from gpuops.files.file import is_missing, parse_toml, read_text, templates
from gpuops.files.private_file import write_new, write_private

_TEMPLATE: Final = "site.toml"
_EXAMPLE: Final = "prod"
"""The target of the template that is filled in."""
_NAME: Final = re.compile(r"[A-Za-z0-9_-]+")
_SITE_KEYS: Final = frozenset({"username", "password_file", "ca_file"})
"""Keys of the example target whose values fit one site only: they become comments unless they are set."""
_FILE_HINT: Final = "name a file that only you can read: gpuops config set {name}.password_file FILE"


def first_configuration(path: Path, name: str | None, settings: Mapping[str, str]) -> None:
    """Write the template to `path` with mode 0600; with a `name` or `settings`, filled in for this vCenter.

    Raises UsageError, also if the file exists, and TargetError.
    """
    text = read_text(templates()[_TEMPLATE])
    if name is not None or settings:
        text = _fill_template(text, name or _EXAMPLE, settings)
        _check(text, path, name or _EXAMPLE)
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(
            f"{path} cannot be written: {error.strerror}", hint="choose another file with --config FILE"
        ) from error
    if not write_new(path, text):
        raise UsageError(
            f"{path} already exists, and was not changed",
            hint="gpuops config set TARGET.KEY VALUE changes a key; gpuops config show prints the settings in force",
        )


def with_target(path: Path, name: str, keys: Mapping[str, Any]) -> str:
    """Return the text of the configuration file, or of the template if there is no file, with one more target.

    Nothing is written. Raises UsageError for a name that is invalid or already used, TargetError.
    """
    if _NAME.fullmatch(name) is None:
        raise UsageError(f"{name!r} cannot name a vCenter", hint="use letters, digits, - and _")
    if path.exists():
        text = _read(path)
        configuration = parsed_configuration(text, path)
        if name in configuration.targets:
            raise UsageError(f"{path} already has a vCenter {name!r}", hint="choose another name")
        if configuration.default is None:
            text = _set_key(text, "", "default", name)
    else:
        text = _fill_template(read_text(templates()[_TEMPLATE]), name, {key: str(value) for key, value in keys.items()})
    for key, value in keys.items():
        text = _set_key(text, name, key, value)
    _check(text, path, name)
    return text


def _fill_template(text: str, name: str, settings: Mapping[str, str]) -> str:
    """Return the template with its example target called `name`. Example keys without a setting become comments."""
    if _NAME.fullmatch(name) is None:
        raise UsageError(
            f"{name!r} cannot name a target", hint="use letters, digits, - and _; the address goes into --address"
        )
    if "host" not in settings:
        raise UsageError("--address is missing", hint=f"gpuops config init --target {name} --address vc.example.com")
    lines, in_example = [], False
    for line in text.splitlines():
        if line == f"[targets.{name}]" and name != _EXAMPLE:
            break  # the simulated target at the end of the template: its name is used now
        if line.startswith("["):
            in_example = line == f"[targets.{_EXAMPLE}]"
        key = line.partition(" = ")[0]
        if line.startswith(f'default = "{_EXAMPLE}"'):
            line = line.replace(f'"{_EXAMPLE}"', json.dumps(name))
        elif line == f"[targets.{_EXAMPLE}]":
            line = f"[targets.{name}]"
        elif in_example and key in settings:
            line = f"{key} = {json.dumps(settings[key])}"
        elif in_example and key in _SITE_KEYS:
            line = f"# {line}"
        lines.append(line)
    return "\n".join(lines) + "\n"


def change(path: Path, dotted: str, value: str) -> tuple[str, str]:
    """Set TARGET.KEY, or `default`, in the file; '' removes the key. Return its values before and after, as text.

    Raises UsageError or TargetError for an invalid key or value; then nothing is written.
    """
    name, _, key = dotted.rpartition(".")
    if dotted != "default":
        _require_key(name, key)
    text = _read(path)
    before = parsed_configuration(text, path)
    # the first key of a new target is its host
    if name and name not in before.targets and key != "host":
        near = get_close_matches(name, before.targets, n=3)
        suggestion = f"; did you mean {', '.join(near)}?" if near else ""
        raise UsageError(
            f"no target {name!r} in {path}{suggestion}",
            hint=f"gpuops config set {name}.host HOST adds a target with this name",
        )
    changed = _set_key(text, name, key, _parse_value(key, value) if dotted != "default" else value)
    # checks the target of the key or, for `default`, the target that becomes the default
    after = _check(changed, path, name or value or None)
    write_private(path.resolve(), changed, like=path)
    return _setting_text(before, name, key), _setting_text(after, name, key)


def _require_key(name: str, key: str) -> None:
    """Raise UsageError unless `key` is a key of a target, and neither a password nor a table."""
    if "password" in key and key != "password_file":
        raise UsageError(
            "this file has no key for a password, and every user of this machine can read a command line",
            hint=_FILE_HINT.format(name=name or "TARGET") + "; or credential, or keyring (gpuops help targets)",
        )
    for table, page in HELP_PAGES.items():
        if key == table or name.endswith(f".{table}"):
            raise UsageError(
                f"{table} is a table, but gpuops config set changes only single keys of a target",
                hint=f"write [targets.NAME.{table}] into the file (gpuops help {page})",
            )
    target_keys = [word for word in keys_of(NamedTarget) if word not in TABLES]
    if key not in target_keys or not name:
        near = (
            get_close_matches(key, target_keys, n=3)
            if name
            else [word for word in ("default",) if word.startswith(key[:3])]
        )
        suggestion = f"; did you mean {', '.join(near)}?" if near else ""
        problem = f"{key!r} is not a key of a target" if name else f"{key!r} is neither default nor TARGET.KEY"
        raise UsageError(f"{problem}{suggestion}", hint=f"keys of a target: {', '.join(target_keys)}")


def _read(path: Path) -> str:
    try:
        return read_text(path, error=TargetError)
    except TargetError as error:
        if is_missing(error):
            raise TargetError(f"{path} does not exist", hint="gpuops config init writes it") from error
        raise


def _parse_value(key: str, value: str) -> Any:
    """Return the value as the file has it: a number, a boolean, text or a list. `decode` checks it later."""
    default = getattr(NamedTarget(host=""), key)
    if isinstance(default, bool) and value in ("true", "false"):
        return value == "true"
    if key == "port" and value.isascii() and value.isdigit() and len(value) < 6:
        return int(value)
    return value.split() if isinstance(default, tuple) else value


def _set_key(text: str, name: str, key: str, value: Any) -> str:
    """Return the text with this value set; '' removes the key. Raises TargetError if other keys would change."""
    import tomlkit
    from tomlkit.exceptions import TOMLKitError

    new_content = parse_toml(text)
    try:
        document = tomlkit.parse(text)
        # the same change to the parsed content shows below whether the edited text means the same
        for mapping in (document, new_content):
            table: Any = mapping
            for part in ("targets", name) if name else ():
                if part not in table:
                    table[part] = tomlkit.table(is_super_table=part == "targets") if mapping is document else {}
                table = table[part]
            if value == "":
                table.pop(key, None)
            else:
                table[key] = value
        changed = tomlkit.dumps(document)
        has_same_meaning = parse_toml(changed) == new_content
    except (TOMLKitError, ValueError, TypeError, RecursionError) as error:
        raise TargetError("gpuops cannot change the file", hint="write the key into it with an editor") from error
    if not has_same_meaning:
        raise TargetError(
            "gpuops cannot change the file without affecting other keys", hint="write the key into it with an editor"
        )
    return changed


def _check(text: str, path: Path, name: str | None) -> Configuration:
    """Return the configuration in the text. Raises TargetError if it or the target is invalid."""
    configuration = parsed_configuration(text, path)
    named = configuration.targets.get(name or "")
    if name is not None and named is not None:
        if not named.host.startswith(SIMULATED) and Address.parse(named.host).password is not None:
            raise TargetError("the address of a target must not contain a password", hint=_FILE_HINT.format(name=name))
        resolve(Flags(vcenter=name), {}, configuration)
    return configuration


def _setting_text(configuration: Configuration, name: str, key: str) -> str:
    """Return the value of a key of the file as text; `not set` if the file does not have the key."""
    section: Any = configuration.targets.get(name) if name else configuration
    is_in_file = name == "" or (section is not None and key in section.given)
    setting = getattr(section, key, None) if is_in_file else None
    if setting is None:
        return "not set"
    if isinstance(setting, tuple):
        return " ".join(map(str, setting))
    return str(setting).lower() if isinstance(setting, bool) else str(setting)
