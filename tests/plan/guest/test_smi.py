"""What nvidia-smi prints in guests is read, and what anybody else could print in its place does no harm."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuops.model.guests.guest import GuestGpu, GuestMode
from gpuops.plan.guest.check_output import MOST_ELEMENTS, MOST_GPUS, read_smi

R580 = """<?xml version="1.0" ?>
<!DOCTYPE nvidia_smi_log SYSTEM "nvsmi_device_v12.dtd">
<nvidia_smi_log>
\t<timestamp>Mon Nov  2 18:00:03 2026</timestamp>
\t<driver_version>580.105.08</driver_version>
\t<cuda_version>13.0</cuda_version>
\t<attached_gpus>1</attached_gpus>
\t<gpu id="00000000:00:07.0">
\t\t<product_name>NVIDIA L40S-2Q</product_name>
\t\t<mig_mode>
\t\t\t<current_mig>N/A</current_mig>
\t\t\t<pending_mig>N/A</pending_mig>
\t\t</mig_mode>
\t\t<vgpu_software_licensed_product>
\t\t\t<licensed_product_name>NVIDIA RTX Virtual Workstation</licensed_product_name>
\t\t\t<license_status>Licensed (Expiry: 2026-11-3 16:1:44 GMT)</license_status>
\t\t</vgpu_software_licensed_product>
\t\t<ecc_mode>
\t\t\t<current_ecc>Enabled</current_ecc>
\t\t\t<pending_ecc>Disabled</pending_ecc>
\t\t</ecc_mode>
\t\t<fb_memory_usage><total>2048 MiB</total></fb_memory_usage>
\t</gpu>
</nvidia_smi_log>
"""


def log(inside: str, before: str = "") -> str:
    return f"{before}<nvidia_smi_log><driver_version>580.65.06</driver_version>{inside}</nvidia_smi_log>"


def test_a_vgpu_of_r580() -> None:
    report = read_smi(R580)
    assert (report.driver, report.cuda) == ("580.105.08", "13.0")
    assert report.gpus == (
        GuestGpu(
            "NVIDIA L40S-2Q",
            "Licensed (Expiry: 2026-11-3 16:1:44 GMT)",
            GuestMode.ON,
            GuestMode.OFF,
            GuestMode.ABSENT,
            GuestMode.ABSENT,
        ),
    )


def test_r595_names_the_driver_otherwise_and_what_is_missing_is_not_told() -> None:
    report = read_smi(R580.replace("driver_version", "kmd_version").replace("13.0", "N/A").replace("license_", "some_"))
    assert (report.driver, report.cuda) == ("580.105.08", None)
    assert report.gpus[0].licence is None
    assert read_smi(log("<gpu/>")).gpus == (GuestGpu("a GPU"),)
    assert read_smi(log("")).gpus == ()


BOMB = '<!DOCTYPE nvidia_smi_log [<!ENTITY a "580"><!ENTITY b "&a;&a;&a;&a;&a;&a;&a;&a;">]>'
OUTSIDE = '<!DOCTYPE nvidia_smi_log [<!ENTITY a SYSTEM "file:///etc/passwd">]>'
PARAMETER = '<!DOCTYPE nvidia_smi_log [<!ENTITY % a SYSTEM "http://127.0.0.1:1/x.dtd"> %a;]>'


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (log("<gpu><product_name>&b;</product_name></gpu>", BOMB), "an entity"),
        (log("<gpu><product_name>&a;</product_name></gpu>", OUTSIDE), "an entity"),
        (log("", PARAMETER), "an entity"),
        (log("<gpu/>" * (MOST_GPUS + 1)), "more than 64 GPUs"),
        (log("<x/>" * MOST_ELEMENTS), "more elements"),
        (log("<x>" * 40 + "</x>" * 40), "more elements"),
        (R580[:400], "it is not XML"),
        (log("").replace("580.65.06", "\x1b[31m"), "it is not XML"),
        (log("").replace("580.65.06", "about 580"), "it names no driver version"),
        ("", "it is not XML"),
        ("<html/>", "it names no driver version"),
    ],
    ids=["bomb", "outside", "parameter", "gpus", "elements", "deep", "cut", "escape", "words", "empty", "another"],
)
def test_what_nvidia_smi_does_not_print_is_refused(text: str, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        read_smi(text)


def test_a_long_text_is_cut() -> None:
    [gpu] = read_smi(log(f"<gpu><product_name>{'x' * 900_000}</product_name></gpu>")).gpus
    assert len(gpu.name) == 200


@pytest.mark.long
@given(st.text(max_size=300))
def test_any_text_is_read_or_refused_in_words(text: str) -> None:
    for report_text in (text, log(text)):
        try:
            read_smi(report_text)
        except ValueError as error:
            assert str(error)
