"""Each setting in force is said with the option, variable or line that says it."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import pytest

from gpuops.config.vcenter.layers import Flags
from gpuops.config.vcenter.origins import Setting, TargetLines, shown_targets
from gpuops.config.vcenter.targets import parsed_configuration
from gpuops.model.vcenter.bulk_reader import BulkReader

FILE: Final = Path("/home/me/config.toml")
PIN: Final = "ab" * 32
TEXT: Final = f"""default = "prod"

[targets.prod]  # the one
host = "vc"
username = "file"
password_file = "/etc/gpuops/prod"
ca_file = "/etc/ca.pem"
verify = false
thumbprint = "{PIN}"
proxy = "proxy:1"
journal_url = "postgresql://db/gpuops"
reader = "soap"

[targets."a.b"]
host = "own@vc2:8443"
"""
BARE: Final = '[targets.prod]\nhost = "vc"\n'


def settings_of(text: str, environ: dict[str, str], **flags: Any) -> dict[str, Setting]:
    targets = shown_targets(Flags(**flags), environ, parsed_configuration(text, FILE), TargetLines.of(FILE, text))
    return {setting.name: setting for target in targets if target.name in ("prod", "vc") for setting in target.settings}


def test_the_file_says_each_with_its_line() -> None:
    settings = settings_of(TEXT, {})
    lines = TEXT.splitlines()
    for name in ("host", "username", "ca_file", "verify", "thumbprint", "proxy", "journal_url", "reader"):
        number = next(n for n, line in enumerate(lines, 1) if line.startswith(f"{name} = "))
        assert settings[name].origin == f"{FILE}:{number}", name
    assert settings["password"] == Setting(
        "password", "set, from file /etc/gpuops/prod, which is not there", f"{FILE}:6"
    )
    assert (settings["port"].value, settings["port"].origin) == ("443", "default")


def test_what_a_target_says_of_itself_as_a_site() -> None:
    settings = settings_of(f'{BARE}zone = "Asia/Tokyo"\nlabels = {{ region = "asia", tier = "prod" }}\n', {})
    assert settings["zone"] == Setting("zone", "Asia/Tokyo", f"{FILE}:3")
    assert settings["labels"] == Setting("labels", "region=asia, tier=prod", f"{FILE}:4")
    assert "policy" not in settings


def test_what_nobody_says_is_the_default() -> None:
    settings = settings_of(BARE, {})
    assert {name for name, setting in settings.items() if setting.origin == "default"} == set(settings) - {"host"}
    assert settings["password"].value == "not set"


@pytest.mark.parametrize(
    ("variable", "value", "name", "text"),
    [
        ("GPUOPS_USERNAME", "env", "username", "env"),
        ("GPUOPS_PASSWORD", "s3cret", "password", "set"),
        ("GPUOPS_PASSWORD_FILE", "/etc/hostname", "password", "set, from file /etc/hostname"),
        ("GPUOPS_INSECURE", "true", "verify", "false"),
        ("GPUOPS_CA_FILE", "/x.pem", "ca_file", "/x.pem"),
        ("GPUOPS_THUMBPRINT", "CD" * 32, "thumbprint", "cd" * 32),
        ("GPUOPS_PROXY", "proxy:2", "proxy", "proxy:2"),
        ("GPUOPS_JOURNAL_URL", "postgresql://db2/gpuops", "journal_url", "postgresql://db2/gpuops"),
        ("GPUOPS_JOURNAL_URL", "postgresql://me:s3cret@db2/gpuops", "journal_url", "set, with a password in it"),
        ("GPUOPS_READER", "json", "reader", "json"),
    ],
)
@pytest.mark.parametrize("file", [TEXT, BARE], ids=["over-the-file", "over-the-default"])
def test_a_variable_comes_before_the_file(file: str, variable: str, value: str, name: str, text: str) -> None:
    assert settings_of(file, {variable: value})[name] == Setting(name, text, variable)


@pytest.mark.parametrize(
    ("flags", "name", "origin"),
    [
        ({"username": "flag"}, "username", "--username"),
        ({"password_file": Path("/etc/hostname")}, "password", "--password-file"),
        ({"verify": False}, "verify", "--insecure"),
        ({"ca_file": Path("/x.pem")}, "ca_file", "--ca-file"),
        ({"thumbprint": PIN}, "thumbprint", "--thumbprint"),
        ({"proxy": "proxy:3"}, "proxy", "--proxy"),
        ({"journal_url": "postgresql://db3/gpuops"}, "journal_url", "--journal-url"),
        ({"reader": BulkReader.JSON}, "reader", "--reader"),
    ],
)
def test_an_option_comes_before_a_variable(flags: dict[str, Any], name: str, origin: str) -> None:
    environ = {
        "GPUOPS_USERNAME": "env",
        "GPUOPS_PASSWORD": "s3cret",
        "GPUOPS_INSECURE": "true",
        "GPUOPS_CA_FILE": "/y.pem",
        "GPUOPS_THUMBPRINT": "cd" * 32,
        "GPUOPS_PROXY": "proxy:2",
        "GPUOPS_JOURNAL_URL": "postgresql://db2/gpuops",
        "GPUOPS_READER": "auto",
    }
    assert settings_of(TEXT, environ, **flags)[name].origin == origin


def test_variables_of_other_tools_speak_of_their_own_vcenter() -> None:
    of_another = {"VMWARE_HOST": "other", "VMWARE_USER": "theirs", "VMWARE_VALIDATE_CERTS": "false"}
    assert settings_of(BARE, of_another)["username"].value == "not set"
    of_this = {**of_another, "VMWARE_HOST": "vc"}
    assert settings_of(BARE, of_this)["username"] == Setting("username", "theirs", "VMWARE_USER")
    assert settings_of(BARE, of_this)["verify"] == Setting("verify", "false", "VMWARE_VALIDATE_CERTS")


def test_the_user_of_an_address_is_said_where_the_address_is() -> None:
    (_, target) = shown_targets(
        Flags(), {"GPUOPS_USERNAME": "env"}, parsed_configuration(TEXT, FILE), TargetLines.of(FILE, TEXT)
    )
    settings = {each.name: each for each in target.settings}
    assert settings["username"] == Setting("username", "own", f"{FILE}:15")
    assert settings["port"] == Setting("port", "8443", f"{FILE}:15")


def test_credentials_and_keyrings_are_named_and_not_asked(tmp_path: Path) -> None:
    (tmp_path / "gpuops-password").write_text("s3cret")
    assert settings_of(BARE, {"CREDENTIALS_DIRECTORY": str(tmp_path)})["password"] == Setting(
        "password", "set, from the credential gpuops-password", "CREDENTIALS_DIRECTORY"
    )
    named = settings_of(BARE + 'credential = "prod"\n', {})["password"]
    assert named == Setting("password", "set, from the credential prod, which a systemd unit alone has", f"{FILE}:3")
    broker = '[targets.prod.broker]\nurl = "https://cs"\nusername = "u"\ndomain = "D"\n'
    (tmp_path / "gpuops-broker-password-prod").write_text("s3cret")
    assert settings_of(BARE + broker, {"CREDENTIALS_DIRECTORY": str(tmp_path)})["broker.password"] == Setting(
        "broker.password", "set, from the credential gpuops-broker-password-prod", "CREDENTIALS_DIRECTORY"
    )
    (tmp_path / "guest").touch(mode=0o600)
    guest = f'[targets.prod.guest]\nusername = "keeper"\npassword_file = "{tmp_path}/guest"\n'
    settings = settings_of(BARE + guest, {})
    line = settings["guest.username"].origin
    assert settings["guest.username"] == Setting("guest.username", "keeper", line)
    assert settings["guest.password"].origin == line
    assert line.endswith(f":{BARE.count(chr(10)) + 1}")
    from_environment = settings_of(BARE + guest, {"GPUOPS_GUEST_USERNAME": "other", "GPUOPS_GUEST_PASSWORD": "x"})
    assert from_environment["guest.username"] == Setting("guest.username", "other", "GPUOPS_GUEST_USERNAME")
    assert from_environment["guest.password"] == Setting("guest.password", "set", "GPUOPS_GUEST_PASSWORD")
    ring = settings_of(BARE + "keyring = true\n", {})["password"]
    assert ring == Setting("password", "from the keyring, service gpuops", f"{FILE}:3")


def test_what_is_measured_is_said_with_the_line_of_its_table() -> None:
    entry = "[targets.prod.measurements]\nstore_dir = '/srv/gpuops'\nhost_shell = 'ssh'\nfine_days = 35\n"
    settings = settings_of(f"{BARE}{entry}", {})
    measurements = {
        name.partition(".")[2]: setting for name, setting in settings.items() if name.startswith("measurements.")
    }
    assert {setting.origin for setting in measurements.values()} == {f"{FILE}:3"}
    assert {name: setting.value for name, setting in measurements.items()} == {
        "store": "/srv/gpuops",
        "counters": "all",
        "fine_days": "35",
        "hourly_days": "400",
        "host_shell": "ssh, as root",
    }
    assert not any(name.startswith("measurements") for name in settings_of(BARE, {}))
    shared = settings_of(BARE + "[targets.prod.measurements]\nstore_url = 'postgresql://db/gpuops'\n", {})
    assert shared["measurements.store"].value == "postgresql://db/gpuops"


def test_a_target_without_a_journal_of_its_own_has_the_fleets() -> None:
    text = f'{BARE}\n[fleet]\nurl = "postgresql://db/fleet"\n'
    assert settings_of(text, {})["journal_url"] == Setting("journal_url", "postgresql://db/fleet", f"{FILE}:5")
    with_own_url = text.replace("[fleet]", 'journal_url = "postgresql://db/own"\n\n[fleet]')
    assert settings_of(with_own_url, {})["journal_url"] == Setting("journal_url", "postgresql://db/own", f"{FILE}:4")
    journal_url = settings_of(text, {"GPUOPS_JOURNAL_URL": "postgresql://db/said"})["journal_url"]
    assert journal_url == Setting("journal_url", "postgresql://db/said", "GPUOPS_JOURNAL_URL")
