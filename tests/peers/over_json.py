"""What govc 0.52 does otherwise over VI/JSON than over SOAP, with a vCenter that speaks it as 8.0.3 does, and why."""

from __future__ import annotations

from typing import Final

TASK_FAULT: Final = "govc looks for a LocalizedMethodFault in the error of a task, and VI/JSON has the fault itself"
"""It panics, or prints no reason."""
BYTES: Final = "govc reads bytes as unsigned from JSON, and bus numbers of PCI devices above 127 are negative"
INTERNAL: Final = "govc calls methods of vCenter's own under the names of its Go types, such as Retrieve...Request"
CLIENT: Final = "govc has no reply type for an internal method, and sends nothing"
COOKIE: Final = "govc logs in to PBM by the cookie of a SOAP session, which it does not have over VI/JSON"

SIGNS: Final = {
    TASK_FAULT: ("panic: runtime error: invalid memory address", r"govc: \n", "Logged Item: "),
    BYTES: ("json: unsupported discriminator kind: struct",),
    INTERNAL: (r"Request\n",),
    CLIENT: ("Cannot get pointer to the result structure",),
    COOKIE: ("The session is not authenticated",),
}
"""What it prints then."""

CALLS: Final = {
    "cluster.mv -cluster=lab-cluster esx-01.lab": TASK_FAULT,
    "cluster.mv -cluster=other-cluster esx-01.lab": TASK_FAULT,
    "datastore.disk.info d.vmdk": INTERNAL,
    "device.clock.add -vm=ml-07": TASK_FAULT,
    "device.floppy.add -vm=ml-07": TASK_FAULT,
    "device.pci.ls -vm=ml-07": BYTES,
    "device.serial.add -vm=ml-07": TASK_FAULT,
    "device.usb.add -vm=ml-07": TASK_FAULT,
    "dvs.add -dvs=DSwitch esx-01.lab": TASK_FAULT,
    "dvs.create DSwitch": TASK_FAULT,
    "firewall.ruleset.find -host=esx-01.lab -direction=inbound -port=22": INTERNAL,
    "gpu.host.info -host=esx-01.lab": BYTES,
    "host.add -hostname=esx-09.lab -username=root -password=x -noverify": TASK_FAULT,
    "host.esxcli -host=esx-01.lab hardware pci list": INTERNAL,
    "host.maintenance.enter -timeout=1 esx-02.lab": TASK_FAULT,
    "host.maintenance.exit esx-02.lab": TASK_FAULT,
    "host.remove esx-02.lab": TASK_FAULT,
    "object.destroy network/DSwitch": TASK_FAULT,
    "object.destroy network/dpg": TASK_FAULT,
    "object.method -name=Destroy_Task -enable=false vm/ml/ml-07": CLIENT,
    "object.save -d=saved -f": BYTES,
    "storage.policy.create -category=a -tag=b c": COOKIE,
    "storage.policy.ls": COOKIE,
    "vm.disk.attach -vm=ml-07 -disk=d.vmdk": TASK_FAULT,
    "vm.disk.attach -vm=ml-07 -disk=none.vmdk": TASK_FAULT,
    "vm.disk.change -vm=ml-07 '-disk.label=Hard disk 1' -size=2G": TASK_FAULT,
    "vm.policy.ls -vm=ml-07": COOKIE,
    "vm.rdm.attach -vm=ml-07 -device=/x": BYTES,
    "vm.rdm.ls -vm=ml-07": BYTES,
    "vm.target.info -cluster=lab-cluster": BYTES,
    "vm.upgrade -vm=ml-07": TASK_FAULT,
}
"""Of the calls of `govc_calls.tsv`."""

TESTS: Final = {
    "test_a_third_instance_on_a_mig_gpu_goes_to_the_other_gpu_and_a_fifth_nowhere": TASK_FAULT,
    "test_device_pci_add_gives_a_directpath_device": BYTES,
    "test_device_pci_ls_offers_the_directpath_devices_of_the_cluster": BYTES,
    "test_esxcli_shows_and_sets_the_options_of_a_kernel_module": INTERNAL,
    "test_esxcli_shows_what_an_administrator_of_gpus_asks_for": INTERNAL,
    "test_gpu_host_info_lists_physical_gpus_only": BYTES,
    "test_host_info_counts_processors_and_memory": BYTES,
    "test_one_device_serves_one_running_machine": BYTES,
    "test_power_off_and_the_states_that_refuse": TASK_FAULT,
    "test_power_on_is_refused_until_the_memory_is_pinned": TASK_FAULT,
}
"""Of the tests of what govc reads and changes."""
