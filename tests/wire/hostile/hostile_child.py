"""A client with 256 MB and 5 s of CPU above what it begins with: it reads from a hostile server, by one of two parsers.

python -m tests.wire.hostile.hostile_child PORT lxml|pyvmomi USERNAME [SECONDS OF PATIENCE]    (the password on stdin)
"""

from __future__ import annotations

import math
import resource
import sys
from pathlib import Path

from gpuops.console.failure import run_guarded
from gpuops.model.vcenter.target import Secret, Target

MEMORY_BYTES = 256 * 1024 * 1024
CPU_S = 5
PATIENCE_S = 2.0


def main() -> None:
    """Exits as gpuops would."""
    from gpuops.vsphere.reading import collect
    from gpuops.vsphere.reading.bulk import reader
    from gpuops.vsphere.session import Session
    from gpuops.vsphere.transport import network, stub, wire

    port, parser, username, *options = sys.argv[1:]
    patience_s = float(options[0]) if options else PATIENCE_S
    target = Target("127.0.0.1", username, Secret(sys.stdin.readline().strip()), port=int(port), tls=False)
    for module, name, seconds in [
        (network, "SILENCE_S", patience_s / 2),
        (reader, "DEADLINE_S", patience_s),
        (wire, "CALL_S", patience_s),
        (stub, "CALL_S", patience_s),
    ]:
        setattr(module, name, seconds)
    import lxml.etree  # noqa: F401 - gpuops imports both parsers where they are used first
    from pyVmomi import vim  # noqa: F401

    in_use = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (in_use + MEMORY_BYTES,) * 2)
    used_s = resource.getrusage(resource.RUSAGE_SELF)
    cpu_s = math.ceil(used_s.ru_utime + used_s.ru_stime) + CPU_S
    resource.setrlimit(resource.RLIMIT_CPU, (cpu_s, cpu_s))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))

    def read() -> None:
        with Session(target) as session:
            if parser == "lxml":
                collect.inventory(session)
            else:
                session.read(session.instance.CurrentTime)
                session.read(_bulk(session))

    sys.exit(run_guarded(read))


def _bulk(session):  # type: ignore[no-untyped-def]
    """pyVmomi's own bulk read of one object."""
    from pyVmomi import vmodl

    query = vmodl.query.PropertyCollector
    content = session.content
    root = content.rootFolder
    spec = query.FilterSpec(
        objectSet=[query.ObjectSpec(obj=root)], propSet=[query.PropertySpec(type=type(root), pathSet=["name"])]
    )
    return lambda: content.propertyCollector.RetrievePropertiesEx([spec], query.RetrieveOptions())


if __name__ == "__main__":
    main()
