"""Our simulator's replies with a few bytes changed: a value, a fault, or an error of the transport, and nothing else.

Thousands of them, decoder by decoder, are in test_fuzzed_decoders.py; vcsim's in tests/peers/test_fuzzed_vcsim.py.
"""

from __future__ import annotations

import re

import pytest

from gpuops.errors import ProtocolError
from gpuops.model.vcenter.target import Target
from tests.wire.hostile.mutated_replies import fuzz_both, fuzz_reader, record_replies, reread


@pytest.mark.long
def test_a_few_hundred(lab_target: Target) -> None:
    recording = record_replies(lab_target)
    fuzz_both(recording.replies, 300, seed=0)
    assert 0 < fuzz_reader(lab_target, recording, 20, seed=0) < 20


@pytest.mark.long
def test_an_object_that_was_not_asked_for_is_refused(lab_target: Target) -> None:
    """Found by seed 1 of whole inventories of vcsim."""
    replies = record_replies(lab_target).read
    assert reread(lab_target, replies).vms
    last = max(number for number, (method, _) in enumerate(replies) if method == "RetrievePropertiesEx")
    method, reply = replies[last]
    strange, changed = re.subn(rb'(<obj[^>]*type="VirtualMachine"[^>]*>)[^<]+', rb"\1vm-4711", reply)
    assert changed
    with pytest.raises(ProtocolError, match="vm-4711, which gpuops did not ask for"):
        reread(lab_target, [*replies[:last], (method, strange), *replies[last + 1 :]])


@pytest.mark.long
@pytest.mark.parametrize("key", [" ", "²", "9" * 5000])
def test_a_number_that_is_none_is_unknown(lab_target: Target, key: str) -> None:
    """Found by seed 1 of whole inventories, of custom attributes; `²` is a digit, and no number."""
    strange = [
        (method, re.sub(rb"(<key[^>]*>)\d+(</key>)", rb"\g<1>" + key.encode() + rb"\g<2>", reply))
        for method, reply in record_replies(lab_target).read
    ]
    inventory = reread(lab_target, strange)
    assert inventory.vms
    assert all(vm.attributes == {} for vm in inventory.vms.values())


@pytest.mark.long
@pytest.mark.timeout(600)
@pytest.mark.parametrize("seed", range(1, 6))
def test_whole_inventories(lab_target: Target, seed: int) -> None:
    assert fuzz_reader(lab_target, record_replies(lab_target), 500, seed=seed) > 100
