"""Runs modules of Ansible's collections one after the other, in its own Python (`make -C tests/peers ansible`).

`test_ansible_calls.py` starts it. Modules run as ansible-playbook runs them, by Ansible's own loader and each in a
process of its own, but that process is forked from this one: a task of ansible-playbook takes a second of processor
time, most of it to pack the module and to import pyVmomi anew. What a module sleeps between two looks at a task lasts a
tenth: its looks alone bring the end of a task nearer.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from functools import partial
from importlib import import_module
from typing import Any, Final

LOADER: Final = "ansible.module_utils._internal._ansiballz._loader"
IMPORTED_ONCE: Final = (LOADER, "pyVim.connect", "pyVmomi", "requests", "vmware.vapi.vsphere.client")
SLEPT: Final = 0.1
"""The share of its sleeps that a module sleeps."""


def result_of(name: str, arguments: dict[str, Any]) -> dict[str, Any]:
    """What a module prints for these arguments; when it prints no result, a failure with what it printed."""
    namespace, collection, module = name.split(".")
    with tempfile.TemporaryFile("w+", encoding="utf-8") as printed:
        child = os.fork()
        if child == 0:
            os.dup2(printed.fileno(), 1)
            _run(f"ansible_collections.{namespace}.{collection}.plugins.modules.{module}", arguments)
        os.waitpid(child, 0)
        printed.seek(0)
        text = printed.read()
    try:
        document: dict[str, Any] = json.loads(text)
    except ValueError:
        return {"failed": True, "crashed": True, "msg": text}
    if "msg" not in document and "exception" in document:
        return {"failed": True, "crashed": True, "msg": str(document["exception"])}
    return document


def _run(path: str, arguments: dict[str, Any]) -> None:
    """Runs a module in this process, and ends the process."""
    loader = import_module(LOADER)
    try:
        loader.run_module(
            json_params=json.dumps({"ANSIBLE_MODULE_ARGS": arguments}).encode(),
            profile="legacy",
            module_fqn=path,
            modlib_path="",
            extensions={},
        )
    except SystemExit:
        pass  # so every module ends
    except BaseException:
        print(traceback.format_exc())
    finally:
        sys.stdout.flush()
        os._exit(0)


def _sleep_less(sleep: Callable[[float], None], seconds: float) -> None:
    sleep(seconds * SLEPT)


if __name__ == "__main__":
    for module_name in IMPORTED_ONCE:
        import_module(module_name)
    time.sleep = partial(_sleep_less, time.sleep)
    json.dump([result_of(*call) for call in json.load(sys.stdin)], sys.stdout)
