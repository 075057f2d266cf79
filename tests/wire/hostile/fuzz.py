"""Mutated input for every decoder: a value or an error of ours, within 5 s of CPU each and 256 MB for all of them.

python -m tests.wire.hostile.fuzz DECODER TURNS SEED     (exit code 1: what it found is now in the corpus)

A decoder has honest examples and one function that may only raise what is allowed. What breaks it is kept in
`corpus/DECODER-DIGEST`, and the quick suite plays all of the corpus.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import random
import re
import resource
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, Final

import pytest

from gpuops.errors import GpuopsError, ProtocolError
from gpuops.model.vcenter.inventory import Inventory
from gpuops.model.vcenter.target import Secret, Target
from gpuops.sim.scenario.build import build
from gpuops.sim.server import SimServer
from gpuops.vsphere.reading.bulk.pages import ReadObject
from gpuops.vsphere.transport import network
from gpuops.vsphere.transport.wire import SessionEnded, WireFault, parse_reply
from tests.sim.lab import category_spec
from tests.wire.hostile.mutated_replies import Recorded, change_values, mutate_reply, record_replies

CORPUS: Final = Path(__file__).parent / "corpus"
ROOT: Final = Path(__file__).parents[3]
CPU_S: Final = 5.0
MOST_KIB: Final = 256 * 1024
_JSON_VALUES: Final = (b"null", b"-1", b"1e999", b"NaN", b"[]", b"{}", b'""', b"9" * 30, b"[" * 2000, b"true")

Play = Callable[[bytes], None]


@dataclass(frozen=True, slots=True)
class Decoder:
    """Honest examples, and what takes one of them, changed, and raises nothing but a bug."""

    examples: list[bytes]
    play: Play
    change: Callable[[bytes, random.Random], bytes] = lambda example, rng: rng.choice((mutate_reply, change_values))(
        example, rng
    )


def respell(example: bytes, rng: random.Random) -> bytes:
    """Bytes changed, or one word of it another value: for JSON, YAML, TOML and CSV."""
    if rng.random() < 0.5:
        return mutate_reply(example, rng)
    words = example.split(b" ")
    words[rng.randrange(len(words))] = rng.choice(_JSON_VALUES)
    return b" ".join(words)


@contextlib.contextmanager
def decoders(*names: str) -> Iterator[dict[str, Decoder]]:
    """These decoders, with examples of the simulated lab."""
    with tempfile.TemporaryDirectory() as folder, SimServer(build("lab"), tls=True) as server:
        target = Target(
            "127.0.0.1",
            server.username,
            Secret(server.password),
            port=server.port,
            ca_files=(str(server.ca_file),),
        )
        _tag(server)
        recording = record_replies(target)
        decoders_by_name: dict[str, Decoder] = {}
        for name in names:
            if name in FILES:
                decoders_by_name[name] = _file_decoder(name, Path(folder), target)
            elif name == "tags":
                decoders_by_name[name] = _tags(target)
            elif name == "json":
                decoders_by_name[name] = _json_pages(target)
            else:
                decoders_by_name[name] = {"parsed": _parsed_decoder, "typed": _typed_decoder, "pages": _pages}[name](
                    recording
                )
        yield decoders_by_name


def _tag(server: SimServer) -> None:
    """Two desktops with a tag, for replies with something in them."""

    def invoke(service: str, operation: str, **parameters: Any) -> Any:
        return server.world.tags.invoke(f"com.vmware.cis.tagging.{service}", operation, parameters)

    refs = [vm.moid for vm in server.world.by_type("VirtualMachine")][:2]
    with server.world.changed:
        category = invoke("category", "create", create_spec=category_spec("role"))
        tag = invoke("tag", "create", create_spec={"name": "desktop", "description": "", "category_id": category})
        objects = [{"type": "VirtualMachine", "id": ref} for ref in refs]
        invoke("tag_association", "attach_tag_to_multiple_objects", tag_id=tag, object_ids=objects)


def _parsed_decoder(recording: Recorded) -> Decoder:
    def play(reply: bytes) -> None:
        with contextlib.suppress(ProtocolError, WireFault, SessionEnded):
            parse_reply(reply, "vc:443")

    return Decoder([reply for _, reply in recording.read], play)


def _typed_decoder(recording: Recorded) -> Decoder:
    from xml.parsers.expat import ExpatError

    from gpuops.vsphere.transport.stub import deserialize_reply

    # the type stands before the reply, so that a case of the corpus is whole
    kinds: dict[bytes, Any] = {f"{kind.__module__}.{kind.__name__}".encode(): kind for _, kind in recording.replies}

    def play(case: bytes) -> None:
        kind, _, reply = case.partition(b"\n")
        with contextlib.suppress(network.UnreadableReply, ExpatError):
            deserialize_reply(reply, kinds.get(kind, datetime), None)

    examples = [f"{kind.__module__}.{kind.__name__}\n".encode() + reply for reply, kind in recording.typed]
    return Decoder(examples, play)


def _record(received: ReadObject) -> Any:
    from gpuops.vsphere.reading import collect
    from gpuops.vsphere.reading.decoding.decode_host import host_with_gpus, pci_devices, thin_host
    from gpuops.vsphere.reading.decoding.decode_vm import thin_vm, with_detail

    if received.type == "HostSystem":
        return host_with_gpus(thin_host(received), pci_devices(received))
    return (
        with_detail(thin_vm(received), received).vm if received.type == "VirtualMachine" else collect._decode(received)
    )


def _json_pages(target: Target) -> Decoder:
    """What the reader of inventories does with one page of VI/JSON."""
    from gpuops.vsphere.reading import collect
    from gpuops.vsphere.reading.bulk import json_pages
    from gpuops.vsphere.session import Session

    replies: list[bytes] = []
    honest = json_pages.pieces

    def record_reply(reply: bytes, **keywords: Any) -> Any:
        replies.append(reply)
        return honest(reply, **keywords)

    with pytest.MonkeyPatch.context() as patched, Session(target) as session:
        patched.setattr(json_pages, "pieces", record_reply)
        session.read_over_vi_json(alone=True)
        collect.inventory(session)

    def play(reply: bytes) -> None:
        with contextlib.suppress(ProtocolError, SessionEnded), network.decoding("vc:443", "a bulk read"):
            for _, objects in honest(reply):
                for received in objects:
                    _record(received)

    return Decoder(replies, play, _json_respelled)


def _json_respelled(example: bytes, rng: random.Random) -> bytes:
    """Bytes changed, or some values of it other ones."""
    if rng.random() < 0.5:
        return mutate_reply(example, rng)
    ends = [match.span() for match in re.finditer(rb'(?<=":)("[^"]*"|-?\d+|true|false)', example)]
    for start, end in sorted(rng.sample(ends, min(len(ends), 5)), reverse=True):
        example = example[:start] + rng.choice(_JSON_VALUES) + example[end:]
    return example


def _pages(recording: Recorded) -> Decoder:
    """What the reader of inventories does with one reply, without the other replies that it would ask for."""
    from gpuops.vsphere.reading.bulk.soap_pages import read_objects, split_reply
    from gpuops.vsphere.transport.messages import check_reply, child

    def play(reply: bytes) -> None:
        with contextlib.suppress(ProtocolError, WireFault, SessionEnded), network.decoding("vc:443", "a bulk read"):
            for piece in split_reply(check_reply(reply)):
                for received in read_objects(child(parse_reply(piece, "vc:443"), "returnval")):
                    _record(received)

    return Decoder([reply for method, reply in recording.read if "RetrieveProperties" in method], play)


def _tags(target: Target) -> Decoder:
    """A read of tags, of which one answer is changed."""
    from gpuops.vsphere.reading import collect, tags
    from gpuops.vsphere.session import Session
    from gpuops.vsphere.transport import automation
    from gpuops.vsphere.transport.exchange import HttpReply, exchange

    with Session(target) as session:
        inventory: Inventory = collect.inventory(session)
        bodies: list[bytes] = []

        def record_reply(*arguments: Any, **keywords: Any) -> HttpReply:
            reply = exchange(*arguments, **keywords)
            bodies.append(reply.body)
            return reply

        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(automation, "exchange", record_reply)
            tags.with_tags(session, inventory)

    class Spoken:
        """What `with_tags` asks of a session."""

        def __init__(self) -> None:
            self.target = target

    def play(case: bytes) -> None:
        number, _, changed = case.partition(b"\n")
        replies_left = iter([changed if place == int(number) else body for place, body in enumerate(bodies)])

        def answer(*_: Any, body: bytes, **__: Any) -> HttpReply:
            identity = json.loads(body)["id"].encode()
            body_to_send = next(replies_left, b"{}")
            return HttpReply(200, "OK", body_to_send.replace(b'"id": "', b'"id": "' + identity + b'", "was": "', 1), ())

        spoken: Any = Spoken()
        with pytest.MonkeyPatch.context() as patched, contextlib.suppress(GpuopsError):
            patched.setattr(automation, "exchange", answer)
            tags.with_tags(spoken, inventory)

    def change(example: bytes, rng: random.Random) -> bytes:
        number, _, body = example.partition(b"\n")
        return number + b"\n" + respell(body, rng)

    return Decoder([b"%d\n" % number + body for number, body in enumerate(bodies)], play, change)


FILES: Final = ("snapshot", "ready", "configuration", "requests-csv", "policy", "roles", "scenario", "faults")


def _file_decoder(name: str, folder: Path, target: Target) -> Decoder:
    from gpuops.config import policy, requests_file, role_file, snapshot
    from gpuops.config.vcenter import sources
    from gpuops.sim.outside_events import fault_file
    from gpuops.sim.scenario import scenario_file
    from gpuops.sim.wire import sim_client

    readers: dict[str, tuple[str, Callable[[Path], object]]] = {
        "snapshot": ("x.json", snapshot.load),
        "ready": ("x.json", sim_client.read),
        "configuration": ("x.toml", sources.read_configuration),
        "requests-csv": ("x.csv", requests_file.load_requests),
        "policy": ("x.yaml", policy.load_policy),
        "roles": ("x.yaml", role_file.load_roles),
        "scenario": ("x.yaml", lambda path: scenario_file.read(str(path))),
        "faults": ("x.yaml", fault_file.read),
    }
    file, read = readers[name]
    path = folder / f"{name}-{file}"

    def play(content: bytes) -> None:
        path.write_bytes(content)
        with contextlib.suppress(GpuopsError):
            read(path)

    return Decoder([_example(name, path, target)], play, respell)


def _example(name: str, path: Path, target: Target) -> bytes:
    from gpuops.config import snapshot
    from gpuops.vsphere.reading import collect
    from gpuops.vsphere.session import Session

    if name == "snapshot":
        with Session(target) as session:
            snapshot.save(collect.inventory(session), path)
        return path.read_bytes().replace(b",", b", ").replace(b":", b": ")
    written = {
        "policy": "templates/policy.yaml",
        "roles": "templates/roles/night.yaml",
        "scenario": "gpuops/sim/scenarios/lab.yaml",
    }
    if name in written:
        return (ROOT / written[name]).read_bytes()
    return {
        "ready": b'{ "url": "https://127.0.0.1:1", "username": "a", "password": "b", "ca_file": null, "pid": 4711 }',
        "configuration": b'default = "prod"\n[targets.prod]\nhost = "vc.example.com"\nport = 443\nverify = true\n',
        "requests-csv": b"name,vcpus,memory_mib,profile\nml-01, 4 , 8192 ,a40-8q\nml-02, 8 , 8192 ,a40-8q\n",
        "faults": b"faults:\n  - T2\n  - fault: V1\n    skip: 3\n  - effect: fault\n    method: PowerOnVM_Task\n",
    }[name]


def broken(decoder: Decoder, case: bytes) -> str | None:
    """What is wrong with how this case is decoded; None = all is well."""
    began_s = time.process_time()
    try:
        decoder.play(case)
    except Exception:
        return traceback.format_exc()
    took_s = time.process_time() - began_s
    return f"it took {took_s:.1f} s" if took_s > CPU_S else None


def run(name: str, turns: int, seed: int) -> list[str]:
    """What went wrong in so many turns; each case that did is put into the corpus."""
    rng, problems = random.Random(seed), []
    with decoders(name) as known_decoders:
        decoder = known_decoders[name]
        for example in decoder.examples:
            assert broken(decoder, example) is None, "an honest example"
        before_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        for turn in range(turns):
            case = decoder.change(decoder.examples[turn % len(decoder.examples)], rng)
            wrong = broken(decoder, case)
            if wrong is not None:
                path = CORPUS / f"{name}-{hashlib.sha256(case).hexdigest()[:12]}"
                path.write_bytes(case)
                problems.append(f"{path.name}: {wrong}")
                if len(problems) == 5:
                    break
        grown_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before_kib
    return [*problems, *([f"{grown_kib // 1024} MiB more than at the beginning"] if grown_kib > MOST_KIB else [])]


def main() -> int:
    """Exit code 1 where something was found."""
    name, turns, seed = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    problems = run(name, turns, seed)
    sys.stdout.write("\n".join(problems) + f"\n{name}: {turns} turns, {sum(os.times()[:2]):.0f} s of CPU\n")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
