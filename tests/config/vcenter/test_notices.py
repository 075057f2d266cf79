"""Where notices are sent: what may stand in the configuration file, and what is shown of a receiver."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpuops.config.vcenter.destination import Destination
from gpuops.config.vcenter.layers import Flags
from gpuops.config.vcenter.sources import read_configuration, resolve
from gpuops.config.vcenter.targets import NotifySettings, checked_entry, receiver_label, url_of
from gpuops.errors import TargetError
from gpuops.model.vcenter.target import Secret

MAIL = "mailto://mail.example.com?from=gpuops@example.com&to=ops@example.com"


@pytest.mark.parametrize("entry", [MAIL, "env:GPUOPS_HOOK", "credential:chat", "file:/etc/gpuops/hook.url"])
def test_what_holds_no_secret_may_stand_in_the_file(entry: str) -> None:
    assert checked_entry(entry) == entry


@pytest.mark.parametrize(
    "entry",
    [
        "slack://t0ken-s3cr3t/b/c",
        "jsons://hooks.example.com/s3cr3t",
        "mailto://me:s3cr3t@mail.example.com",
        "mailto://mail.example.com?pass=s3cr3t",
        "mailto://mail.example.com?+Authorization=s3cr3t",
        "env:s3cr3t-no-name",
        "credential:../s3cr3t",
        "",
    ],
)
def test_a_secret_does_not_stand_in_the_file(entry: str, tmp_path: Path) -> None:
    path = tmp_path / "config.toml"
    path.write_text(f'[targets.prod]\nhost = "vc.example.com"\nnotify = ["{entry}"]\n')
    with pytest.raises(TargetError) as raised:
        read_configuration(path)
    assert "targets.prod.notify" in raised.value.message
    assert "write env:VARIABLE, file:PATH or credential:NAME" in raised.value.message
    assert "s3cr3t" not in raised.value.line


def test_a_target_has_its_receivers(tmp_path: Path) -> None:
    path = tmp_path / "config.toml"
    path.write_text(f'[targets.prod]\nhost = "vc.example.com"\nnotify = ["{MAIL}", "env:HOOK", "env:HOOK"]\n')
    configuration = read_configuration(path)
    named = resolve(Flags(vcenter="prod"), {}, configuration)
    assert named.notify == NotifySettings("prod", (MAIL, "env:HOOK")), "once each"
    untargeted = resolve(Flags(vcenter="https://vc.example.com"), {}, configuration)
    assert isinstance(untargeted, Destination)
    assert untargeted.notify is None, "off unless the target is named"


def test_where_a_url_comes_from(tmp_path: Path) -> None:
    hook = tmp_path / "hook"
    hook.write_text("json://hooks.example.com/x\n")
    hook.chmod(0o600)
    environ = {"HOOK": "json://hooks.example.com/x", "CREDENTIALS_DIRECTORY": str(tmp_path)}
    for entry in ("env:HOOK", f"file:{hook}", "credential:hook"):
        assert url_of(entry, environ).reveal() == "json://hooks.example.com/x"
    assert url_of(MAIL, {}).reveal() == MAIL


@pytest.mark.parametrize(
    ("entry", "says"),
    [
        ("env:HOOK", "HOOK is not set"),
        ("credential:hook", "needs CREDENTIALS_DIRECTORY"),
        ("file:/nowhere/hook.url", "the URL file /nowhere/hook.url cannot be read"),
    ],
)
def test_a_url_that_is_not_there_is_named(entry: str, says: str) -> None:
    with pytest.raises(TargetError, match=says):
        url_of(entry, {})


def test_a_file_that_others_can_read_is_refused(tmp_path: Path) -> None:
    hook = tmp_path / "hook"
    hook.write_text("json://hooks.example.com/x\n")
    hook.chmod(0o644)
    with pytest.raises(TargetError, match=r"the URL file .* can be read or written by others"):
        url_of(f"file:{hook}", {})


@pytest.mark.parametrize(
    ("entry", "url", "shown_receiver"),
    [
        (MAIL, MAIL, "mailto://mail.example.com"),
        ("env:HOOK", "jsons://me:s3cr3t@hooks.example.com/s3cr3t", "jsons://hooks.example.com (env:HOOK)"),
        ("env:HOOK", "slack://s3cr3t/b/c", "slack:// (env:HOOK)"),
        ("env:HOOK", "s3cr3t", "?:// (env:HOOK)"),
        ("env:HOOK", "json://[s3cr3t", "json:// (env:HOOK)"),
    ],
)
def test_what_is_shown_of_a_receiver(entry: str, url: str, shown_receiver: str) -> None:
    assert receiver_label(entry, Secret(url)) == shown_receiver
