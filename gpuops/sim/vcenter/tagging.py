"""Tags, categories and associations, as the tagging service of the Automation API keeps them; custom attributes.

One store, two wires: JSON-RPC (vmware-vcenter) and REST (govc) call the same operations
(`wire/automation/services.py`). Operation names, parameters and model fields are those of `com.vmware.cis.tagging`
(vSphere Automation API reference).
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, Final
from uuid import UUID

from gpuops.sim.vcenter.vapi_values import (
    TEXT,
    Enumeration,
    Fields,
    ListOf,
    Parameters,
    Struct,
    StructureType,
    VapiFault,
    check,
    operation_input,
    operation_not_found,
    structure_type,
)

if TYPE_CHECKING:
    from gpuops.sim.core.registry import Registry

TAGGING: Final = "com.vmware.cis.tagging"
_OBJECT: Final = StructureType("com.vmware.vapi.std.dynamic_ID", {"type": TEXT, "id": TEXT})
_TAG_FIELDS: Final[Fields] = {"name": TEXT, "description": TEXT}
_CARDINALITY: Final = Enumeration(f"{TAGGING}.category_model.cardinality", ("SINGLE", "MULTIPLE"))
_CATEGORY_FIELDS: Final[Fields] = {**_TAG_FIELDS, "cardinality": _CARDINALITY, "associable_types": ListOf(TEXT)}
_TAG: Final = operation_input(tag_id=TEXT)
_CATEGORY: Final = operation_input(category_id=TEXT)
INPUTS: Final = {
    "category_list": operation_input(),
    "category_get": _CATEGORY,
    "category_create": operation_input(
        create_spec=structure_type(
            f"{TAGGING}.category.create_spec", {**_CATEGORY_FIELDS, "category_id": TEXT}, "category_id"
        )
    ),
    "category_update": operation_input(
        category_id=TEXT,
        update_spec=structure_type(f"{TAGGING}.category.update_spec", _CATEGORY_FIELDS, *_CATEGORY_FIELDS),
    ),
    "category_delete": _CATEGORY,
    "tag_list": operation_input(),
    "tag_get": _TAG,
    "tag_create": operation_input(
        create_spec=structure_type(
            f"{TAGGING}.tag.create_spec", {**_TAG_FIELDS, "category_id": TEXT, "tag_id": TEXT}, "tag_id"
        )
    ),
    "tag_update": operation_input(
        tag_id=TEXT, update_spec=structure_type(f"{TAGGING}.tag.update_spec", _TAG_FIELDS, *_TAG_FIELDS)
    ),
    "tag_delete": _TAG,
    "tag_list_tags_for_category": _CATEGORY,
    "tag_association_attach": operation_input(tag_id=TEXT, object_id=_OBJECT),
    "tag_association_detach": operation_input(tag_id=TEXT, object_id=_OBJECT),
    "tag_association_attach_tag_to_multiple_objects": operation_input(tag_id=TEXT, object_ids=ListOf(_OBJECT)),
    "tag_association_detach_tag_from_multiple_objects": operation_input(tag_id=TEXT, object_ids=ListOf(_OBJECT)),
    "tag_association_attach_multiple_tags_to_object": operation_input(object_id=_OBJECT, tag_ids=ListOf(TEXT)),
    "tag_association_detach_multiple_tags_from_object": operation_input(object_id=_OBJECT, tag_ids=ListOf(TEXT)),
    "tag_association_list_attached_tags": operation_input(object_id=_OBJECT),
    "tag_association_list_attachable_tags": operation_input(object_id=_OBJECT),
    "tag_association_list_attached_tags_on_objects": operation_input(object_ids=ListOf(_OBJECT)),
    "tag_association_list_attached_objects": _TAG,
    "tag_association_list_attached_objects_on_tags": operation_input(tag_ids=ListOf(TEXT)),
}
"""The operations with the types of their parameters (vSphere Automation API reference, com.vmware.cis.tagging)."""


@dataclass(slots=True)
class _Category:
    id: str
    name: str
    description: str
    cardinality: str
    associable_types: list[str]
    used_by: list[str] = field(default_factory=list)

    @property
    def types(self) -> list[str]:
        """The types without the namespace that a client may write before them, as vCenter returns them."""
        return sorted(name.removeprefix("urn:vim25:") for name in self.associable_types)


@dataclass(slots=True)
class _Tag:
    id: str
    category_id: str
    name: str
    description: str
    used_by: list[str] = field(default_factory=list)


Object = tuple[str, str]
"""(managed object type, managed object id)."""


class TagStore:
    """Every category, tag and association of one vCenter; `invoke` runs an operation by service and name."""

    def __init__(
        self,
        new_uuid: Callable[[], UUID],
        record: Callable[[str, Object, str], None],
        is_there: Callable[[Object], bool],
    ) -> None:
        """`new_uuid` returns uuids that follow from the world's seed, `record(operation, object, tag id)` writes to the
        ledger, and `is_there` returns whether vCenter has an object of that type and id."""
        self._new_uuid = new_uuid
        self._record = record
        self._is_there = is_there
        self._categories: dict[str, _Category] = {}
        self._tags: dict[str, _Tag] = {}
        self._objects: dict[str, set[Object]] = {}

    def invoke(self, service: str, operation: str, parameters: object) -> Any:
        """The result of one operation, made of Struct, list, str, bool and None. Raises VapiFault."""
        name = f"{service.removeprefix(TAGGING + '.')}_{operation}".replace("-", "_")
        if not service.startswith(TAGGING + ".") or name not in INPUTS:
            raise operation_not_found(service, operation)
        check(parameters, INPUTS[name])
        handler: Callable[[Any], Any] = getattr(self, f"_{name}")
        return handler(parameters)

    def to_json(self) -> dict[str, Any]:
        """Return all categories, tags and associations as JSON values."""
        return {
            "categories": [asdict(category) for category in self._categories.values()],
            "tags": [asdict(tag) for tag in self._tags.values()],
            "objects": {tag_id: sorted(map(list, objects)) for tag_id, objects in self._objects.items()},
        }

    def load(self, saved: Mapping[str, Any]) -> None:
        """Replace everything by what `to_json` returned. Raises KeyError, TypeError or ValueError for anything else."""
        self._categories = {category["id"]: _Category(**category) for category in saved["categories"]}
        self._tags = {tag["id"]: _Tag(**tag) for tag in saved["tags"]}
        self._objects = {tag_id: {(kind, moid) for kind, moid in saved["objects"][tag_id]} for tag_id in self._tags}

    # -- categories

    def _category_list(self, _: Parameters) -> list[str]:
        return list(self._categories)

    def _category_get(self, parameters: Parameters) -> Struct:
        category = self._category(parameters["category_id"])
        return Struct(f"{TAGGING}.category_model", {**asdict(category), "associable_types": category.types})

    def _category_create(self, parameters: Parameters) -> str:
        spec = parameters["create_spec"]
        self._refuse_category_name(spec["name"])
        identity = spec.get("category_id") or f"urn:vmomi:InventoryServiceCategory:{self._new_uuid()}:GLOBAL"
        self._categories[identity] = _Category(identity, **{name: spec[name] for name in _CATEGORY_FIELDS})
        return identity

    def _category_update(self, parameters: Parameters) -> None:
        category, spec = self._category(parameters["category_id"]), parameters["update_spec"]
        if spec.get("name") not in (None, category.name):
            self._refuse_category_name(spec["name"])
        _update(category, spec)

    def _category_delete(self, parameters: Parameters) -> None:
        category = self._category(parameters["category_id"])
        for tag_id in self._tag_list_tags_for_category(parameters):
            self._tag_delete({"tag_id": tag_id})
        del self._categories[category.id]

    # -- tags

    def _tag_list(self, _: Parameters) -> list[str]:
        return list(self._tags)

    def _tag_get(self, parameters: Parameters) -> Struct:
        return Struct(f"{TAGGING}.tag_model", asdict(self._tag(parameters["tag_id"])))

    def _tag_create(self, parameters: Parameters) -> str:
        spec = parameters["create_spec"]
        category = self._category(spec["category_id"])
        self._refuse_tag_name(category, spec["name"])
        identity = spec.get("tag_id") or f"urn:vmomi:InventoryServiceTag:{self._new_uuid()}:GLOBAL"
        self._tags[identity] = _Tag(identity, category.id, spec["name"], spec["description"])
        self._objects[identity] = set()
        return identity

    def _tag_update(self, parameters: Parameters) -> None:
        tag, spec = self._tag(parameters["tag_id"]), parameters["update_spec"]
        if spec.get("name") not in (None, tag.name):
            self._refuse_tag_name(self._category(tag.category_id), spec["name"])
        _update(tag, spec)

    def _tag_delete(self, parameters: Parameters) -> None:
        tag = self._tag(parameters["tag_id"])
        del self._tags[tag.id], self._objects[tag.id]

    def _tag_list_tags_for_category(self, parameters: Parameters) -> list[str]:
        category = self._category(parameters["category_id"])
        return [tag.id for tag in self._tags.values() if tag.category_id == category.id]

    # -- associations

    def _tag_association_attach(self, parameters: Parameters) -> None:
        self._attach(self._tag(parameters["tag_id"]), _object(parameters["object_id"]))

    def _tag_association_detach(self, parameters: Parameters) -> None:
        self._detach(self._tag(parameters["tag_id"]), _object(parameters["object_id"]))

    def _tag_association_attach_tag_to_multiple_objects(self, parameters: Parameters) -> Struct:
        tag = self._tag(parameters["tag_id"])
        return _batch(lambda object_id: self._attach(tag, _object(object_id)), parameters["object_ids"])

    def _tag_association_detach_tag_from_multiple_objects(self, parameters: Parameters) -> Struct:
        tag = self._tag(parameters["tag_id"])
        return _batch(lambda object_id: self._detach(tag, _object(object_id)), parameters["object_ids"])

    def _tag_association_attach_multiple_tags_to_object(self, parameters: Parameters) -> Struct:
        target = self._readable(parameters["object_id"])
        return _batch(lambda tag_id: self._attach(self._tag(tag_id), target), parameters["tag_ids"])

    def _tag_association_detach_multiple_tags_from_object(self, parameters: Parameters) -> Struct:
        target = self._readable(parameters["object_id"])
        return _batch(lambda tag_id: self._detach(self._tag(tag_id), target), parameters["tag_ids"])

    def _tag_association_list_attached_tags(self, parameters: Parameters) -> list[str]:
        return self._tags_of(_object(parameters["object_id"]))

    def _tag_association_list_attachable_tags(self, parameters: Parameters) -> list[str]:
        target = _object(parameters["object_id"])
        return [tag.id for tag in self._tags.values() if self._refusal(tag, target) is None]

    def _tag_association_list_attached_tags_on_objects(self, parameters: Parameters) -> list[Struct]:
        return [
            Struct(f"{TAGGING}.tag_association.object_to_tags", {"object_id": _dynamic_id(target), "tag_ids": tags})
            for target in map(_object, parameters["object_ids"])
            if (tags := self._tags_of(target))
        ]

    def _tag_association_list_attached_objects(self, parameters: Parameters) -> list[Struct]:
        attached = self._objects[self._tag(parameters["tag_id"]).id]
        return [_dynamic_id(target) for target in sorted(attached) if self._is_there(target)]

    def _tag_association_list_attached_objects_on_tags(self, parameters: Parameters) -> list[Struct]:
        return [
            Struct(
                f"{TAGGING}.tag_association.tag_to_objects",
                {"tag_id": tag_id, "object_ids": self._tag_association_list_attached_objects({"tag_id": tag_id})},
            )
            for tag_id in parameters["tag_ids"]
        ]

    def _attach(self, tag: _Tag, target: Object) -> None:
        """Raises VapiFault of kind invalid_argument for an object that is not there, and for one that the category
        does not allow the tag on (vSphere Automation API reference, tag_association.attach)."""
        if target not in self._objects[tag.id]:
            refusal = self._refusal(tag, target)
            if refusal is not None:
                raise VapiFault("invalid_argument", refusal, args=(tag.id, *target))
            self._objects[tag.id].add(target)
            self._record("attach", target, tag.id)

    def _refusal(self, tag: _Tag, target: Object) -> str | None:
        """Why the tag may not be attached to the object; None = it may."""
        category = self._categories[tag.category_id]
        if not self._is_there(target):
            return f"There is no {target[0]} with the identifier {target[1]}."
        if category.types and target[0] not in category.types:
            return f"Tags of category {category.name} cannot be attached to objects of type {target[0]}."
        category_ids = (self._tags[tag_id].category_id for tag_id in self._tags_of(target) if tag_id != tag.id)
        if category.cardinality == "SINGLE" and category.id in category_ids:
            return f"Category {category.name} allows one tag on each object, and {target[1]} already has one."
        return None

    def _readable(self, parameter: Mapping[str, str]) -> Object:
        """The object of a call about several tags. Raises VapiFault of kind unauthorized for one that is not there,
        since no user may read it (govmomi, vapi/tags, AttachMultipleTagsToObject: vCenter answers 403)."""
        target = _object(parameter)
        if not self._is_there(target):
            raise VapiFault("unauthorized", f"You have no permission to read {target[1]}.", args=(target[1],))
        return target

    def _refuse_category_name(self, name: str) -> None:
        if not name:
            raise VapiFault("invalid_argument", "A category needs a name.")
        if any(category.name == name for category in self._categories.values()):
            raise VapiFault("already_exists", f"category {name} already exists", args=(name,))

    def _refuse_tag_name(self, category: _Category, name: str) -> None:
        if not name:
            raise VapiFault("invalid_argument", "A tag needs a name.")
        if any(tag.category_id == category.id and tag.name == name for tag in self._tags.values()):
            raise VapiFault("already_exists", f"tag {name} already exists in {category.name}", args=(name,))

    def _detach(self, tag: _Tag, target: Object) -> None:
        if target in self._objects[tag.id]:
            self._objects[tag.id].remove(target)
            self._record("detach", target, tag.id)

    def _tags_of(self, target: Object) -> list[str]:
        return [tag_id for tag_id, objects in self._objects.items() if target in objects]

    def _category(self, identity: str) -> _Category:
        if identity not in self._categories:
            raise VapiFault("not_found", f"category {identity} not found")
        return self._categories[identity]

    def _tag(self, identity: str) -> _Tag:
        if identity not in self._tags:
            raise VapiFault("not_found", f"tag {identity} not found")
        return self._tags[identity]


def _update(model: _Category | _Tag, spec: Mapping[str, Any]) -> None:
    for name, setting in spec.items():
        if setting is not None:
            setattr(model, name, setting)


def _batch(operation: Callable[[Any], None], items: list[Any]) -> Struct:
    """The BatchResult of an operation on several tags or objects: each is tried, and the errors are listed."""
    messages = []
    for target in items:
        try:
            operation(target)
        except VapiFault as fault:
            messages.append(fault.message())
    fields = {"success": not messages, "error_messages": messages}
    return Struct(f"{TAGGING}.tag_association.batch_result", fields)


def _object(parameter: Mapping[str, str]) -> Object:
    return parameter["type"], parameter["id"]


def _dynamic_id(target: Object) -> Struct:
    return Struct("com.vmware.vapi.std.dynamic_ID", {"type": target[0], "id": target[1]})


MOID: Final = "CustomFieldsManager"
FIRST_KEY: Final = 101


@dataclass(slots=True)
class CustomField:
    """One definition; `applies_to` is a managed object type's WSDL name, '' for all."""

    key: int
    name: str
    applies_to: str


class CustomFields:
    """Definitions by key."""

    def __init__(self, registry: Registry) -> None:
        self.fields: dict[int, CustomField] = {}
        self._registry = registry
        self._keys = itertools.count(FIRST_KEY)

    def define(self, name: str, applies_to: str = "VirtualMachine") -> int:
        """Return the key of the field with this name and type; define the field if it does not exist."""
        for custom_field in self.fields.values():
            if (custom_field.name, custom_field.applies_to) == (name, applies_to):
                return custom_field.key
        custom_field = CustomField(next(self._keys), name, applies_to)
        self.fields[custom_field.key] = custom_field
        self.changed()
        return custom_field.key

    def load(self, saved: list[dict[str, Any]]) -> None:
        """Replace all definitions by saved ones, which are dicts of the fields of `CustomField`."""
        self.fields = {field["key"]: CustomField(**field) for field in saved}
        self._keys = itertools.count(max(self.fields, default=FIRST_KEY - 1) + 1)
        self.changed()

    def key(self) -> tuple[tuple[int, str, str], ...]:
        """Return all definitions as a hashable value, which changes with each of them."""
        return tuple((field.key, field.name, field.applies_to) for field in self.fields.values())

    def changed(self) -> None:
        """Tell the readers of the manager's list of definitions."""
        manager = self._registry.find(MOID)
        if manager is not None:
            manager.touch("field")
