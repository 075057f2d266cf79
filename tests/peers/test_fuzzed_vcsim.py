"""Replies of a third-party vCenter (vcsim), with a few bytes changed: each ends in a value or one of our errors."""

from __future__ import annotations

import pytest

from gpuops.config.vcenter.destination import Address
from gpuops.model.vcenter.target import Secret, Target
from tests.peers.processes import Endpoint
from tests.sample import every_nth
from tests.wire.hostile.mutated_replies import fuzz_both, fuzz_reader, record_replies

pytestmark = [pytest.mark.peer, pytest.mark.timeout(600)]


@pytest.fixture
def target(shared_vcsim: Endpoint) -> Target:
    address = Address.parse(shared_vcsim.url)
    return Target(
        address.host,
        shared_vcsim.username,
        Secret(shared_vcsim.password),
        port=address.port,
        ca_files=(str(shared_vcsim.ca_file),),
    )


def test_two_of_ten_parts_of_a_hundred_thousand(target: Target) -> None:
    for seed in every_nth(range(1, 11), 5):
        fuzz_both(record_replies(target).replies, 10_000, seed=seed)


@pytest.mark.parametrize("seed", range(1, 4))
def test_whole_inventories(target: Target, seed: int) -> None:
    assert fuzz_reader(target, record_replies(target), 500, seed=seed) > 0
