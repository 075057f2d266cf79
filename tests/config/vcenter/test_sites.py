"""Which targets `--site` means, and what a target says of itself as a site."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import pytest

from gpuops.config.decoding import decode
from gpuops.config.vcenter.sources import chosen_sites
from gpuops.config.vcenter.targets import Configuration, parsed_configuration
from gpuops.errors import TargetError, UsageError

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
    assert raised.value.hint == "sites there: muc-1, muc-2, nyc, a=b"


def test_what_a_site_says() -> None:
    (site,) = chosen_sites("muc-1", CONFIGURATION, FILE)
    assert (site.zone, site.policy, dict(site.labels)) == (
        "Europe/Berlin",
        Path("/etc/gpuops/muc.yaml"),
        {"region": "emea", "tier": "prod"},
    )


def test_a_file_without_targets_has_no_sites() -> None:
    with pytest.raises(UsageError, match=r"there is no target in /etc/gpuops\.toml"):
        chosen_sites("all", Configuration(), FILE)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('zone = "Europe/Nowhere"', "targets.a.zone: this machine knows no such time zone"),
        ('zone = "../../etc/passwd"', "targets.a.zone: this machine knows no such time zone"),
        ('policy = "policy.yaml"', "targets.a.policy: cron looks elsewhere for files"),
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
