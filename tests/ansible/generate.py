"""Write what a module of Ansible would otherwise repeat (`make generate`; a test fails while a file is not current).

An option that is a field of a request is written once, as that field: `gpuops.console.options` makes the command's
option from it, and this program the option in the module's DOCUMENTATION, whose description is the field's help unless
`OWN_WORDS` names it. `vms` of `vm_gpus` and `after_clone` of `vm_gpu` have the options of another module. Every other
option is written in DOCUMENTATION, and is the parameter of the same name of the module's task (`gpuops/tasks/`).
`plugins/module_utils/arguments.py` has the argument specs of all modules, which are made from their documentation;
the lists in `tests/sanity/` have every module.
"""

from __future__ import annotations

import re
import subprocess
import sys
import textwrap
from collections.abc import Iterator, Mapping
from dataclasses import MISSING, Field, fields
from enum import StrEnum
from pathlib import Path
from types import NoneType
from typing import Any, Final, get_args, get_origin, get_type_hints

import yaml

from gpuops.extras.sizing.size_request import SizeRequest
from gpuops.plan.capacity.capacity_request import CapacityRequest
from gpuops.plan.core.command_line import Option
from gpuops.plan.hosts.graphics.mode import SetMode
from gpuops.plan.hosts.graphics.passthrough import SetPassthrough
from gpuops.plan.hosts.scheduler.scheduler_change import SetScheduler
from gpuops.plan.queue.place import Place
from gpuops.plan.vm.attach import Attach
from gpuops.plan.vm.detach import Detach

Options = dict[str, dict[str, Any]]
"""The options of a documentation block, by name."""

PLUGINS: Final = Path(__file__).resolve().parents[2] / "gpuops/ansible_collections/gpuops/vsphere/plugins"
ARGUMENTS: Final = PLUGINS / "module_utils" / "arguments.py"
REQUESTS: Final[Mapping[str, tuple[type[Any], ...]]] = {
    "gpu_capacity_info": (CapacityRequest,),
    "gpu_placement": (Place,),
    "gpu_sizing_info": (SizeRequest,),
    "host_gpu_scheduler": (SetScheduler,),
    "host_graphics_mode": (SetMode,),
    "host_passthrough": (SetPassthrough,),
    "vm_gpu": (Attach, Detach),
}
"""The requests whose fields are options of a module; of two, `state` says which."""

OWN_WORDS: Final = {
    "gpu_capacity_info": "profile cluster host",
    "gpu_placement": "keep_free optimize",
    "gpu_sizing_info": "tag at_most guaranteed",
    "host_gpu_scheduler": "time_slice gpu",
    "host_graphics_mode": "assignment gpu",
    "host_passthrough": "gpu label",
    "vm_gpu": "profile count dynamic device_type all add host keep_free",
    "vm_gpus": "vm",
}
"""The options whose description in the module says more than the field's help."""

FRAGMENTS: Final = ("connection", "host_shell", "rolling", "vm")
NO_LOG: Final = {"password": True, "password_file": False, "journal_url": True, "ssh_key": False}
LICENCE: Final = "validate-modules:missing-gplv3-license  # gpuops is under Apache-2.0"
"""What `ansible-test sanity` ignores of every module."""

VM: Final = ("vm", "moid", "uuid")
_KEYS: Final = ("type", "elements", "choices", "aliases", "default", "required")
_TYPES: Final = {str: "str", int: "int", bool: "bool", float: "float"}
_OPTIONS: Final = re.compile(r"^options:\n(?:  .*\n)+", re.MULTILINE)
_HEADER: Final = '''# Copyright: gpuops contributors
# SPDX-License-Identifier: Apache-2.0
"""The arguments of every module, made from their documentation by `make generate`."""

from __future__ import annotations

'''


def generate() -> dict[Path, str]:
    """Return the text that each generated file should have."""
    texts = {path.stem: path.read_text(encoding="utf-8") for path in sorted((PLUGINS / "modules").glob("*.py"))}
    options = {module: _options_in(text) for module, text in texts.items()}
    vm = _options_in((PLUGINS / "doc_fragments" / "vm.py").read_text(encoding="utf-8"))
    for module, requests in REQUESTS.items():
        for request in reversed(requests):
            options[module] |= dict(_options_of(request, module, options[module]))
    gpus = {name: option for name, option in options["vm_gpu"].items() if name != "after_clone"}
    _nest(options["vm_gpu"]["after_clone"], options["vm_clone"], "after_clone.")
    _nest(options["vm_gpus"]["vms"], {**vm, **gpus}, "vms[].", OWN_WORDS["vm_gpus"].split())
    files = {PLUGINS / "modules" / f"{name}.py": _with_options(text, options[name]) for name, text in texts.items()}
    ignored = "".join(f"plugins/modules/{name}.py {LICENCE}\n" for name in texts)
    lists = dict.fromkeys(sorted((PLUGINS.parent / "tests" / "sanity").glob("ignore-*.txt")), ignored)
    return {**files, **lists, ARGUMENTS: _arguments(texts, options)}


def _options_of(request: type[Any], module: str, before: Options) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the fields of a request that are options, as documentation. A list keeps its default, a text of its own
    its words."""
    hints = get_type_hints(request, include_extras=True)
    words = {name: _words(hint) for name, hint in hints.items()}
    for field in fields(request):
        kind, *notes = get_args(hints[field.name]) or (None,)
        note = next((note for note in notes if isinstance(note, Option)), None)
        if note is not None and field.name != "vm":
            old = before.get(field.name, {"default": []})
            (plain,) = (part for part in get_args(kind) or (kind,) if part not in (NoneType, ...))
            is_own = "description" in old and field.name in OWN_WORDS[module].split()
            option = {"description": old["description"] if is_own else [_description(field, note, words)]}
            if get_origin(kind) is tuple:
                option |= {"type": "list", "elements": "str"} | ({"default": []} if "default" in old else {})
            else:
                option["type"] = "str" if words[field.name] else _TYPES[plain]
            option |= {"choices": words[field.name]} if words[field.name] else {}
            option |= {"default": False} if kind is bool else {}
            option |= {"required": True} if field.default is MISSING else {}
            yield field.name, option


def _description(field: Field[Any], note: Option, words: Mapping[str, list[str]]) -> str:
    """Return a field's help in Ansible's markup, without a colon before a space, which YAML takes for a key."""

    def option(match: re.Match[str]) -> str:
        name, word = match[1].replace("-", "_"), match[2]
        mark = "O" if name in words else "V"
        if word and word in words.get(name, [word]):
            return f"{mark}({name}={word})"
        return f"{mark}({name})" + (f" {word}" if word else "")

    text = note.help.replace(" May be repeated.", "").replace("; default: ", "; by default ")
    text = re.sub(r"--([a-z-]+)(?: (\w+))?", option, text)
    text = re.sub(r"`([^`]+)`", r"V(\1)", text)
    for word in words[field.name]:
        text = re.sub(rf"(?<!\S){re.escape(word)}: ", f"V({_yaml(word)}) - ", text)
        text = re.sub(rf": {re.escape(word)} ", f" - V({word}) ", text)
    text = re.sub(r": (\S*\d\S*)\.(?=\s|$)", r", V(\1).", text)
    text = re.sub(r" \((\S+\*)\)", r", a shell pattern such as V(\1)", text).replace(": ", " - ")
    if isinstance(field.default, StrEnum):
        text += f" Default V({field.default})."
    return text if note.metavar is None or not re.search(r"\d", note.metavar) else f"{text} Example V({note.metavar})."


def _nest(option: dict[str, Any], inner: Options, prefix: str, own_words: list[str] | None = None) -> None:
    """Give an option these suboptions: references to their neighbours get the prefix."""
    before, option["suboptions"] = option["suboptions"], {}
    names = "|".join(inner)
    for name, suboption in inner.items():
        texts = [re.sub(rf"O\(({names})\b", rf"O({prefix}\1", text) for text in suboption["description"]]
        texts = before[name]["description"] if name in (own_words or ()) else texts
        option["suboptions"][name] = {**suboption, "description": texts}


def _lines(options: Options, pad: str) -> Iterator[str]:
    """Yield the lines of options in a documentation block."""
    for name, option in options.items():
        yield f"{pad}{name}:"
        if isinstance(option["description"], str):
            yield from _wrap(f"{pad}  description: ", option["description"], f"{pad}    ")
        else:
            yield f"{pad}  description:"
            for text in option["description"]:
                yield from _wrap(f"{pad}    - ", text, f"{pad}      ")
        yield from (f"{pad}  {key}: {_yaml(option[key])}" for key in _KEYS if key in option)
        if "suboptions" in option:
            yield f"{pad}  suboptions:"
            yield from _lines(option["suboptions"], f"{pad}    ")


def _wrap(first: str, text: str, indent: str) -> list[str]:
    return textwrap.wrap(
        text, 120, initial_indent=first, subsequent_indent=indent, break_on_hyphens=False, break_long_words=False
    )


def _yaml(value: Any) -> str:
    """Return a value on one line of YAML 1.1, which reads `on` and `off` as booleans."""
    if isinstance(value, list):
        return f"[{', '.join(map(_yaml, value))}]"
    plain = str(value).lower() if isinstance(value, bool) else str(value)
    return plain if yaml.safe_load(plain) == value else f'"{plain}"'


def _arguments(texts: Mapping[str, str], options: Mapping[str, Options]) -> str:
    """Return the module with the argument specs, as ruff formats it. What several have stands in it once."""
    gpus = {name: option for name, option in options["vm_gpu"].items() if name != "after_clone"}
    groups = {"GPUS": _spec(gpus), "CLONE": _spec(options["vm_clone"])}
    for name in FRAGMENTS:
        groups[name.upper()] = _spec(
            _options_in((PLUGINS / "doc_fragments" / f"{name}.py").read_text(encoding="utf-8"))
        )
    source = "ARGUMENTS = {\n"
    for module, text in texts.items():
        shared = [f"**{name.upper()}" for name in FRAGMENTS if f"\n  - gpuops.vsphere.{name}\n" in text]
        specs = [_spec(options[module])[1:-1]] if options[module] else []
        source += f"{module!r}: {{{', '.join([*shared, *specs])}}},\n"
    for name, spec in groups.items():
        source = source.replace(spec[1:-1], f"**{name}").replace(f"{{**{name}}}", name)
    source = "".join([_HEADER, *(f"{name} = {spec}\n" for name, spec in groups.items()), source, "}\n"])
    command = [str(Path(sys.executable).with_name("ruff")), "format", "--stdin-filename", str(ARGUMENTS), "-"]
    return subprocess.run(command, input=source, capture_output=True, encoding="utf-8", check=True).stdout


def _spec(options: Options) -> str:
    """Return the argument spec of these options as Python."""
    arguments = []
    for name, option in options.items():
        parts = [f"{key!r}: {option[key]!r}" for key in _KEYS if key in option]
        parts += [f"'no_log': {NO_LOG[name]}"] if name in NO_LOG else []
        inner = option.get("suboptions")
        parts += [f"'options': {_spec(inner)}"] if inner else []
        rules = ("mutually_exclusive", "required_one_of") if inner and set(VM) <= set(inner) else ()
        parts += [f"{rule!r}: [{VM!r}]" for rule in rules]
        arguments.append(f"{name!r}: {{{', '.join(parts)}}}")
    return f"{{{', '.join(arguments)}}}"


def _with_options(text: str, options: Options) -> str:
    return _OPTIONS.sub(lambda _: "\n".join(["options:", *_lines(options, "  "), ""]), text)


def _options_in(text: str) -> Options:
    match = _OPTIONS.search(text)
    options: Options = yaml.safe_load(match[0])["options"] if match is not None else {}
    return options


def _words(hint: Any) -> list[str]:
    kinds = [kind for part in get_args(hint)[:1] for kind in (part, *get_args(part))]
    return [str(word) for kind in kinds if isinstance(kind, type) and issubclass(kind, StrEnum) for word in kind]


if __name__ == "__main__":
    for path, text in generate().items():
        path.write_text(text, encoding="utf-8")
