"""gpuops' own bulk reader: the same properties into the same records an inventory is made of, all of them kept.

python -m tests.bench.readers.gpuops QUESTION-FILE
"""

from __future__ import annotations

import gc
from urllib.parse import urlsplit

import lxml.etree  # noqa: F401 - gpuops imports it where it is used first; here imports are over before the count begins

from gpuops.cli.app import NEW_OBJECTS_BEFORE_COLLECTION
from gpuops.model.vcenter.host import Host
from gpuops.model.vcenter.target import Secret, Target
from gpuops.model.vcenter.vm import Vm
from gpuops.vsphere.reading.bulk.pages import ReadObject
from gpuops.vsphere.reading.bulk.reader import reading
from gpuops.vsphere.reading.collect import inventory
from gpuops.vsphere.reading.decoding.decode_host import host_with_gpus, pci_devices, thin_host
from gpuops.vsphere.reading.decoding.decode_vm import thin_vm, with_detail
from gpuops.vsphere.session import Session
from tests.bench.readers.account import Account
from tests.bench.readers.question import Question, read_question


def target_of(question: Question) -> Target:
    """The question's vCenter as gpuops names it."""
    at = urlsplit(question.url)
    return Target(
        host=at.hostname or "",
        port=at.port or 443,
        username=question.username,
        password=Secret(question.password),
        ca_files=(question.ca_file,),
    )


def decode(read_object: ReadObject) -> Vm | Host:
    """A record with everything that was read of it."""
    if read_object.type == "VirtualMachine":
        return with_detail(thin_vm(read_object), read_object).vm
    return host_with_gpus(thin_host(read_object), pci_devices(read_object))


def main() -> None:
    """Read what is asked, or the whole inventory when no properties are named, and count."""
    account, question = Account(), read_question()
    gc.set_threshold(NEW_OBJECTS_BEFORE_COLLECTION)  # as the command line does
    with Session(target_of(question)) as session:
        if question.vi_json:
            session.read_over_vi_json(alone=True)
        account.begin()
        if question.paths:
            with reading(session) as reader:
                records = reader.read_all(question.paths, decode)
                account.objects = len(records)
        else:
            snapshot = inventory(session)
            account.objects = len(snapshot.vms) + len(snapshot.hosts)
        account.print()


if __name__ == "__main__":
    main()
