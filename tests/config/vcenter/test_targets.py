"""The configuration file: named targets, and one clear line for whatever is wrong in it."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import pytest

from gpuops.config.decoding import decode, keys_of
from gpuops.config.vcenter.sources import chosen_sites, read_configuration
from gpuops.config.vcenter.targets import TABLES, Configuration, NamedTarget, parsed_configuration
from gpuops.errors import TargetError, UsageError


def write(folder: Path, text: str) -> Path:
    path = folder / "config.toml"
    path.write_text(text, encoding="utf-8")
    return path


def test_a_file_that_is_not_there_says_nothing(tmp_path: Path) -> None:
    configuration = read_configuration(tmp_path / "config.toml")
    assert (configuration.default, configuration.targets) == (None, {})


def test_a_home_that_is_no_directory_says_nothing_either(tmp_path: Path) -> None:
    """Of a service account it often is /dev/null."""
    configuration = read_configuration(Path("/dev/null/.config/gpuops/config.toml"))
    assert (configuration.default, configuration.targets) == (None, {})


def test_a_target_has_the_fields_of_the_manual(tmp_path: Path) -> None:
    path = write(
        tmp_path,
        """
        default = "prod"
        [targets.prod]
        host = "vc.example.com"
        port = 8443
        username = "gpuops@vsphere.local"
        password_file = "/etc/gpuops/prod"
        ca_file = "/etc/gpuops/ca.pem"
        verify = false
        proxy = "proxy:3128"
        """,
    )
    target = read_configuration(path).targets["prod"]
    assert (target.host, target.port, target.username) == ("vc.example.com", 8443, "gpuops@vsphere.local")
    assert (target.password_file, target.ca_file) == (Path("/etc/gpuops/prod"), Path("/etc/gpuops/ca.pem"))
    assert (target.verify, target.proxy) == (False, "proxy:3128")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("default = 'prod'", "no [targets.prod]"),
        ("[targets.a]", "targets.a.host"),
        ("[targets.a]\nhost = 'vc'\nport = 0", "targets.a.port"),
        ("[targets.a]\nhost = 'vc'\nverfy = false", "targets.a.verfy"),
        ("[targets.a]\nurl = 'vc'", "targets.a.url: unknown key (and 1 more)"),
        ("[targets", "is not TOML"),
    ],
)
def test_what_is_wrong_is_named(tmp_path: Path, text: str, message: str) -> None:
    path = write(tmp_path, text)
    with pytest.raises(TargetError) as caught:
        read_configuration(path)
    assert message in caught.value.message
    assert str(path) in caught.value.message
    assert "\n" not in caught.value.message


def test_a_password_in_the_file_is_refused_and_not_repeated(tmp_path: Path) -> None:
    path = write(tmp_path, "[targets.a]\nhost = 'vc'\npassword = 'Cn4ry&'")
    with pytest.raises(TargetError) as caught:
        read_configuration(path)
    assert "password_file" in caught.value.hint
    assert "Cn4ry" not in f"{caught.value.message} {caught.value.hint} {caught.value.__cause__}"


def test_a_file_that_is_not_text_is_named(tmp_path: Path) -> None:
    path = tmp_path / "config.toml"
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(TargetError, match="is not UTF-8"):
        read_configuration(path)


def test_no_password_of_a_journal_belongs_in_the_file(tmp_path: Path) -> None:
    path = write(tmp_path, '[targets.prod]\nhost = "vc"\njournal_url = "postgresql://gpuops:Cn4ry@db/gpuops"')
    with pytest.raises(TargetError, match=r"journal_url: .*this file must not contain a password") as refused:
        read_configuration(path)
    assert "Cn4ry" not in f"{refused.value.message} {refused.value.hint}"


def test_the_template_is_a_configuration_and_speaks_of_every_key() -> None:
    template = Path(__file__).parents[3] / "templates" / "site.toml"
    configuration = read_configuration(template)
    assert (configuration.default, configuration.targets["prod"].host, configuration.targets["lab"].host) == (
        "prod",
        "vc.example.com",
        "sim:lab",
    )
    text = template.read_text(encoding="utf-8")
    assert [name for name in keys_of(NamedTarget) if f"{name} = " not in text] == list(TABLES)
    assert all(f"[targets.prod.{table}]" in text for table in TABLES)


def test_what_runners_play_has_one_journal(tmp_path: Path) -> None:
    text = '[fleet]\nurl = "postgresql://db/fleet"\n[targets.prod]\nhost = "vc"\njournal_url = "postgresql://db/own"\n'
    assert read_configuration(write(tmp_path, text)).targets["prod"].journal_url == "postgresql://db/own"
    with pytest.raises(TargetError, match=r"targets\.prod\.journal_url: it differs from"):
        read_configuration(write(tmp_path, text + 'rotations = ["/etc/gpuops/vdi.yaml"]\n'))
    for line in ('rotations = ["vdi.yaml"]', 'rotations = ["/etc/gpuops/vdi.yaml", "vdi.yaml"]'):
        with pytest.raises(TargetError, match="it is not an absolute path"):
            read_configuration(write(tmp_path, f'[targets.prod]\nhost = "vc"\n{line}\n'))


FILE: Final = Path("/etc/gpuops.toml")

TEXT: Final = """
[targets.muc-1]
host = "vc1"
zone = "Europe/Berlin"
policy = "/etc/gpuops/muc.yaml"
labels = { region = "emea", tier = "prod" }
[targets.muc-2]
host = "vc2"
labels = { region = "emea" }
[targets.nyc]
host = "vc3"
labels = { region = "amer", tier = "test" }
[targets."a=b"]
host = "vc4"
"""

CONFIGURATION: Final = parsed_configuration(TEXT, FILE)


@pytest.mark.parametrize(
    ("word", "names"),
    [
        ("all", ["muc-1", "muc-2", "nyc", "a=b"]),
        ("*", ["muc-1", "muc-2", "nyc", "a=b"]),
        ("muc-2", ["muc-2"]),
        ("muc-*", ["muc-1", "muc-2"]),
        ("[mn]*", ["muc-1", "muc-2", "nyc"]),
        ("region=emea", ["muc-1", "muc-2"]),
        ("region=*m*", ["muc-1", "muc-2", "nyc"]),
        ("tier=prod", ["muc-1"]),
        ("a=b", ["a=b"]),
    ],
)
def test_a_word_means_sites_in_the_order_of_the_file(word: str, names: list[str]) -> None:
    assert [site.name for site in chosen_sites(word, CONFIGURATION, FILE)] == names


@pytest.mark.parametrize("word", ["MUC-1", "", "region=", "region=asia", "nowhere=emea", "muc"])
def test_a_word_that_means_none_is_refused(word: str) -> None:
    with pytest.raises(UsageError, match="no target") as raised:
        chosen_sites(word, CONFIGURATION, FILE)
    assert raised.value.hint == "use one of: muc-1, muc-2, nyc, a=b"


def test_what_a_site_says() -> None:
    (site,) = chosen_sites("muc-1", CONFIGURATION, FILE)
    assert (site.zone, site.policy, dict(site.labels)) == (
        "Europe/Berlin",
        Path("/etc/gpuops/muc.yaml"),
        {"region": "emea", "tier": "prod"},
    )


def test_a_file_without_targets_has_no_sites() -> None:
    with pytest.raises(UsageError, match=r"/etc/gpuops\.toml has no targets"):
        chosen_sites("all", Configuration(), FILE)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('zone = "Europe/Nowhere"', "targets.a.zone: it is not an IANA time zone that this machine knows"),
        ('zone = "../../etc/passwd"', "targets.a.zone: it is not an IANA time zone that this machine knows"),
        ('policy = "policy.yaml"', "targets.a.policy: it is not an absolute path, which cron needs"),
        ('labels = { "a=b" = "c" }', "targets.a.labels: the name of a label"),
        ('labels = { "" = "c" }', "targets.a.labels: the name of a label"),
        ("labels = { region = 1 }", "targets.a.labels.region"),
    ],
)
def test_what_cannot_be_meant_names_its_key(line: str, message: str) -> None:
    with pytest.raises(TargetError) as raised:
        parsed_configuration(f'[targets.a]\nhost = "vc"\n{line}\n', FILE)
    assert message in raised.value.message


@pytest.mark.parametrize(
    ("keys", "expected"),
    [
        ({}, None),
        ({"rotations": ("/a.yaml",)}, "/a.yaml"),
        ({"rotations": ("/a.yaml", "/b.yaml")}, None),
        ({"rotations": ("/a.yaml",), "policy": "/c.yaml"}, "/c.yaml"),
    ],
)
def test_the_policy_of_a_site_is_its_own_or_the_only_one_that_runners_play(
    keys: dict[str, Any], expected: str | None
) -> None:
    """`gpuops queue --site all` shows the queue of a fleet before its first night."""
    configuration = decode(Configuration, {"targets": {"fra": {"host": "fra.example.com", **keys}}})
    (site,) = chosen_sites("fra", configuration, FILE)
    assert site.policy == (Path(expected) if expected else None)
