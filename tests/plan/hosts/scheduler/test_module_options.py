"""The option string of the nvidia module: what is read from it, and that a change leaves every foreign byte alone."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuops.model.devices.gpu import PciAddress
from gpuops.model.devices.scheduler import BEST_EFFORT, RoundRobin, SchedulerPolicy, TimeSlices, VgpuScheduler
from gpuops.plan.hosts.scheduler.module_options import (
    Unread,
    differs_only_for,
    gpus_with_entry,
    read,
    reason_not_editable,
    set_word,
)

ONE, TWO, THREE = (PciAddress.parse(text) for text in ("0000:3b:00.0", "0000:86:00.0", "0000:af:00.0"))
EQUAL, FIXED = VgpuScheduler(SchedulerPolicy.EQUAL_SHARE), VgpuScheduler(SchedulerPolicy.FIXED_SHARE)
ADAPTIVE = RoundRobin.ADAPTIVE

SPELLINGS = (
    "3b:00", "3B:0", "3b:00.0", "0:3b:00", "0000:3b:00", "0000:3b:00.0", "00000000:3B:00.0", ":3b:00", "0x3b:0x0",
    "0000:3b:00x", "0000:3b:00:0"
)  # fmt: skip
"""The first GPU as the driver understands it: pci_str_to_bdf of NVIDIA's open-gpu-kernel-modules."""
NO_ADDRESS = (
    "", "3b", "3b:", "0000:3b:", "0000:3b:x", "3b:x", "3b:00.", "3b:00.8", "3b:00.00", "x:3b:00", "3b:00.1", "1:3b:00"
)  # fmt: skip
"""None, or another function or domain."""


@pytest.mark.parametrize(
    ("options", "first_scheduler", "two"),
    [
        ("", BEST_EFFORT, BEST_EFFORT),
        ("NVreg_RegistryDwords=RmPVMRL=0x01", EQUAL, EQUAL),
        ("NVreg_RegistryDwords=RmPVMRL=17", FIXED, FIXED),
        ("NVreg_RegistryDwords=Other=1;rmpvmrl=0x1;More=2", EQUAL, EQUAL),
        ('NVreg_RegistryDwords="RmPVMRL=0x11"', FIXED, FIXED),
        ("NVreg_RegistryDwordsPerDevice=pci=0000:3B:00.0;RmPVMRL=0x11", FIXED, BEST_EFFORT),
        (
            "a  NVreg_RegistryDwordsPerDevice=pci=3b:00.0;X=2;pci=86:00.0;RmPVMRL=0x0 NVreg_RegistryDwords=RmPVMRL=1",
            EQUAL,
            BEST_EFFORT,
        ),
        (
            "NVreg_RegistryDwords=RmPVMRL=0x00180013",
            VgpuScheduler(SchedulerPolicy.FIXED_SHARE, TimeSlices(24)),
            VgpuScheduler(SchedulerPolicy.FIXED_SHARE, TimeSlices(24)),
        ),
        *[(f"NVreg_RegistryDwordsPerDevice=pci={text};RmPVMRL=0x11", FIXED, BEST_EFFORT) for text in SPELLINGS],
        *[(f"NVreg_RegistryDwordsPerDevice=pci={text};RmPVMRL=0x11", BEST_EFFORT, BEST_EFFORT) for text in NO_ADDRESS],
        ('NVreg_RegistryDwordsPerDevice="pci = 0000: 3b:00 ; RmPVMRL = 0x11"', FIXED, BEST_EFFORT),
        # the driver compares with `pci`, and skips an item with a second equals sign
        ("NVreg_RegistryDwordsPerDevice=pci=3b:00;PCI=86:00;RmPVMRL=0x11", FIXED, BEST_EFFORT),
        ("NVreg_RegistryDwordsPerDevice=pci=3b:00;pci=86:00=1;RmPVMRL=0x11", FIXED, BEST_EFFORT),
        ("NVreg_RegistryDwordsPerDevice=pci=3b:00;pci=nonsense;RmPVMRL=0x11", BEST_EFFORT, BEST_EFFORT),
        ("NVreg_RmPVMRL=1 RmPVMRL=1 X=NVreg_RegistryDwords=RmPVMRL=1", BEST_EFFORT, BEST_EFFORT),
    ],
)
def test_what_the_options_say_of_a_gpu(options: str, first_scheduler: VgpuScheduler, two: VgpuScheduler) -> None:
    assert (read(options, ONE, ADAPTIVE), read(options, TWO, ADAPTIVE)) == (first_scheduler, two)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ("NVreg_RegistryDwords=RmPVMRL=1;RmPVMRL=0x11", "RmPVMRL has no single valid value"),
        ("NVreg_RegistryDwords=RmPVMRL=soon", "RmPVMRL has no single valid value"),
        ("NVreg_RegistryDwords=RmPVMRL=1 NVreg_RegistryDwords=X=2", "NVreg_RegistryDwords twice"),
        ('NVreg_RegistryDwords="RmPVMRL=1', "a quote that is not closed"),
    ],
)
def test_what_can_be_meant_in_two_ways_is_not_read(options: str, words: str) -> None:
    scheduler = read(options, ONE, ADAPTIVE)
    assert isinstance(scheduler, Unread)
    assert words in scheduler.why


@pytest.mark.parametrize(
    ("options", "gpus", "expected"),
    [
        ("", (), "NVreg_RegistryDwords=RmPVMRL=0x11"),
        ("a=1", (), "a=1 NVreg_RegistryDwords=RmPVMRL=0x11"),
        ("a=1 ", (), "a=1 NVreg_RegistryDwords=RmPVMRL=0x11"),
        ("NVreg_RegistryDwords=X=1", (), "NVreg_RegistryDwords=X=1;RmPVMRL=0x11"),
        ("NVreg_RegistryDwords=X=1;", (), "NVreg_RegistryDwords=X=1;RmPVMRL=0x11;"),
        ('NVreg_RegistryDwords="X=1" b', (), 'NVreg_RegistryDwords="X=1;RmPVMRL=0x11" b'),
        ("NVreg_RegistryDwords=", (), "NVreg_RegistryDwords=RmPVMRL=0x11"),
        (" q  NVreg_RegistryDwords=rmpvmrl=0x1;X=1", (), " q  NVreg_RegistryDwords=rmpvmrl=0x11;X=1"),
        ("NVreg_RegistryDwords=RmPVMRL=17", (), "NVreg_RegistryDwords=RmPVMRL=17"),
        (
            "NVreg_RegistryDwordsPerDevice=pci=3b:00.0;RmPVMRL=0x1;pci=86:00.0;X=1",
            (),
            "NVreg_RegistryDwordsPerDevice=pci=3b:00.0;RmPVMRL=0x11;pci=86:00.0;X=1 NVreg_RegistryDwords=RmPVMRL=0x11",
        ),
        (
            "NVreg_RegistryDwordsPerDevice=pci=0000:86:00;RmPVMRL=0x1",
            (TWO,),
            "NVreg_RegistryDwordsPerDevice=pci=0000:86:00;RmPVMRL=0x11",
        ),
        ("a=1", (TWO,), "a=1 NVreg_RegistryDwordsPerDevice=pci=0000:86:00.0;RmPVMRL=0x11"),
        (
            "NVreg_RegistryDwordsPerDevice=pci=3b:00.0;RmPVMRL=0x1;pci=86:00.0;X=1;pci=af:00.0;Y=2 z",
            (TWO,),
            "NVreg_RegistryDwordsPerDevice=pci=3b:00.0;RmPVMRL=0x1;pci=86:00.0;X=1;RmPVMRL=0x11;pci=af:00.0;Y=2 z",
        ),
        (
            "NVreg_RegistryDwordsPerDevice=pci=3b:00.0;X=1",
            (TWO, THREE),
            "NVreg_RegistryDwordsPerDevice=pci=3b:00.0;X=1;pci=0000:86:00.0;RmPVMRL=0x11;pci=0000:af:00.0;RmPVMRL=0x11",
        ),
    ],
)
def test_a_word_is_written_in_place(options: str, gpus: tuple[PciAddress, ...], expected: str) -> None:
    assert set_word(options, 0x11, gpus) == expected


def test_gpus_with_an_entry_of_their_own() -> None:
    options = "NVreg_RegistryDwordsPerDevice=pci=3b:00.0;X=1;pci=86:00.0;RmPVMRL=1;pci=nonsense;RmPVMRL=1"
    assert gpus_with_entry(options) == (TWO,)


name = st.from_regex(r"[A-Za-z_][A-Za-z0-9_.]{0,11}", fullmatch=True).filter(lambda text: text.lower() != "rmpvmrl")
value = st.from_regex(r"[!#-&(-:<-~]{0,8}", fullmatch=True)
item = st.builds("{}={}".format, name.filter(lambda text: text.lower() != "pci"), value)
foreign = st.one_of(name, st.builds("{}={}".format, name, value), st.builds('{}="a b;{}"'.format, name, item)).filter(
    lambda text: not text.startswith("NVreg_RegistryDwords")
)
word = st.sampled_from(["RmPVMRL=0x01", "RmPVMRL=0x00000011", "rmpvmrl=0"])
dwords = st.lists(item | word, min_size=1, max_size=4).map(lambda items: "NVreg_RegistryDwords=" + ";".join(items))
group = st.tuples(
    st.sampled_from(["pci=0000:3b:00.0", "pci=86:00.0", "pci=0000:AF:00.0", "pci=?", "pci=af:00"]),
    st.lists(item | word, max_size=3),
).map(lambda parts: ";".join([parts[0], *parts[1]]))
per_device = st.lists(group, min_size=1, max_size=4).map(
    lambda groups: "NVreg_RegistryDwordsPerDevice=" + ";".join(groups)
)
blanks = st.sampled_from([" ", "  ", "\t"])


@st.composite
def option_strings(draw: st.DrawFn) -> str:
    parts = draw(st.lists(foreign, max_size=4))
    parts += [draw(kind) for kind in (dwords, per_device) if draw(st.booleans())]
    text = draw(st.sampled_from(["", " "]))
    for part in draw(st.permutations(parts)):
        text += part + draw(blanks)
    return text if draw(st.booleans()) else text.rstrip()


def without_ours(options: str) -> str:
    """All bytes that are not ours: our values, and the entry, group and option that are there for their sake alone."""
    text = re.sub(r"(?i)(rmpvmrl=)[^;\s\"]*", r"\1", options)
    text = re.sub(r" ?NVreg_RegistryDwords=RmPVMRL=(?=\s|$)", "", text)
    text = re.sub(r";?pci=0000:86:00\.0;RmPVMRL=(?=[;\s\"]|$)", "", text)
    text = re.sub(r" ?NVreg_RegistryDwordsPerDevice=(?=\s|$)", "", text)
    return re.sub(r";?RmPVMRL=(?=[;\s\"]|$)", "", text)


@given(option_strings(), st.sampled_from([(), (TWO,)]), st.sampled_from([0, 0x01, 0x11, 0x00180013]))
def test_no_foreign_byte_is_touched(options: str, gpus: tuple[PciAddress, ...], word: int) -> None:
    assert reason_not_editable(options) is None
    changed = set_word(options, word, gpus)
    assert without_ours(changed).strip() == without_ours(options).strip()
    assert set_word(changed, word, gpus) == changed


@given(option_strings(), st.sampled_from([0, 0x01, 0x11]))
def test_what_was_written_is_read_back_and_other_gpus_keep_theirs(options: str, word: int) -> None:
    expected = {0: BEST_EFFORT, 0x01: EQUAL, 0x11: FIXED}[word]
    changed = set_word(options, word, (TWO,))
    assert read(changed, TWO, ADAPTIVE) == expected
    assert [read(changed, gpu, ADAPTIVE) for gpu in (ONE, THREE)] == [
        read(options, gpu, ADAPTIVE) for gpu in (ONE, THREE)
    ]
    assert {read(set_word(options, word), gpu, ADAPTIVE) for gpu in (ONE, TWO, THREE)} == {expected}


OWN = "NVreg_RegistryDwordsPerDevice=pci=0000:5e:00.0;RmPVMRL=0x01"


@pytest.mark.parametrize(
    ("before", "now", "only"),
    [
        ("", OWN, True),
        ("NVreg_A=1", f"NVreg_A=1 {OWN}", True),
        (OWN, OWN.replace("0x01", "0x11"), True),
        ("NVreg_A=1", f"NVreg_A=2 {OWN}", False),
        ("", f"{OWN} NVreg_A=1", False),
        ("", OWN.replace("5e", "86"), False),
        ("", "NVreg_RegistryDwords=RmPVMRL=0x01", False),
        ("", OWN.replace("0x01", "what"), False),
    ],
)
def test_whether_one_gpu_alone_was_set_is_told(before: str, now: str, only: bool) -> None:
    assert differs_only_for(before, now, PciAddress.parse("0000:5e:00.0")) is only
