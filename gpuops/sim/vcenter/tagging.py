"""Tags, categories and associations, as the tagging service of the vSphere Automation API keeps them.

One store, two wires: `vapi.py` puts JSON-RPC (vmware-vcenter) and REST (govc) in front of the same operations.
Operation names, parameters and model fields are those of `com.vmware.cis.tagging` (vSphere Automation API reference).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any
from uuid import UUID

TAGGING = "com.vmware.cis.tagging"


class TagFault(Exception):
    """A vAPI standard error: `not_found`, `already_exists`, `invalid_argument`, `operation_not_found`."""

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(message)
        self.kind = kind


@dataclass(frozen=True, slots=True)
class Struct:
    """A named vAPI structure on its way out."""

    name: str
    fields: Mapping[str, Any]


@dataclass(slots=True)
class _Category:
    id: str
    name: str
    description: str
    cardinality: str
    associable_types: list[str]
    used_by: list[str] = field(default_factory=list)


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

    def __init__(self, new_uuid: Callable[[], UUID], record: Callable[[str, Object, str], None]) -> None:
        """`new_uuid` draws from the world's seed; `record(operation, object, tag id)` writes the ledger."""
        self._new_uuid = new_uuid
        self._record = record
        self._categories: dict[str, _Category] = {}
        self._tags: dict[str, _Tag] = {}
        self._objects: dict[str, set[Object]] = {}

    def invoke(self, service: str, operation: str, parameters: Mapping[str, Any]) -> Any:
        """The result of one operation, made of Struct, list, str, bool and None. Raises TagFault."""
        kind = service.removeprefix(TAGGING + ".").replace("-", "_")
        handler = getattr(self, f"_{kind}_{operation.replace('-', '_')}", None)
        if not service.startswith(TAGGING + ".") or handler is None:
            raise TagFault("operation_not_found", f"no operation {operation} in {service}")
        return handler(parameters)

    def to_json(self) -> dict[str, Any]:
        """Everything it keeps, as JSON values."""
        return {
            "categories": [asdict(category) for category in self._categories.values()],
            "tags": [asdict(tag) for tag in self._tags.values()],
            "objects": {tag_id: sorted(map(list, objects)) for tag_id, objects in self._objects.items()},
        }

    def load(self, saved: Mapping[str, Any]) -> None:
        """Replace everything by what `to_json` returned. Raises KeyError, TypeError or ValueError for anything else."""
        self._categories = {each["id"]: _Category(**each) for each in saved["categories"]}
        self._tags = {each["id"]: _Tag(**each) for each in saved["tags"]}
        self._objects = {tag_id: {(kind, moid) for kind, moid in saved["objects"][tag_id]} for tag_id in self._tags}

    # -- categories

    def _category_list(self, _: Mapping[str, Any]) -> list[str]:
        return list(self._categories)

    def _category_get(self, parameters: Mapping[str, Any]) -> Struct:
        category = self._category(parameters["category_id"])
        return Struct(
            f"{TAGGING}.category_model",
            {
                "id": category.id,
                "name": category.name,
                "description": category.description,
                "cardinality": category.cardinality,
                "associable_types": sorted(category.associable_types),
                "used_by": category.used_by,
            },
        )

    def _category_create(self, parameters: Mapping[str, Any]) -> str:
        spec = parameters["create_spec"]
        if any(category.name == spec["name"] for category in self._categories.values()):
            raise TagFault("already_exists", f"category {spec['name']} already exists")
        identity = spec.get("category_id") or f"urn:vmomi:InventoryServiceCategory:{self._new_uuid()}:GLOBAL"
        self._categories[identity] = _Category(
            identity,
            spec["name"],
            spec.get("description") or "",
            spec.get("cardinality") or "SINGLE",
            list(spec.get("associable_types") or ()),
        )
        return identity

    def _category_update(self, parameters: Mapping[str, Any]) -> None:
        category, spec = self._category(parameters["category_id"]), parameters["update_spec"]
        for name in ("name", "description", "cardinality", "associable_types"):
            if spec.get(name) is not None:
                setattr(category, name, spec[name])

    def _category_delete(self, parameters: Mapping[str, Any]) -> None:
        category = self._category(parameters["category_id"])
        for tag in [tag for tag in self._tags.values() if tag.category_id == category.id]:
            self._tag_delete({"tag_id": tag.id})
        del self._categories[category.id]

    # -- tags

    def _tag_list(self, _: Mapping[str, Any]) -> list[str]:
        return list(self._tags)

    def _tag_get(self, parameters: Mapping[str, Any]) -> Struct:
        tag = self._tag(parameters["tag_id"])
        return Struct(
            f"{TAGGING}.tag_model",
            {
                "id": tag.id,
                "category_id": tag.category_id,
                "name": tag.name,
                "description": tag.description,
                "used_by": tag.used_by,
            },
        )

    def _tag_create(self, parameters: Mapping[str, Any]) -> str:
        spec = parameters["create_spec"]
        category = self._category(spec["category_id"])
        if any(tag.category_id == category.id and tag.name == spec["name"] for tag in self._tags.values()):
            raise TagFault("already_exists", f"tag {spec['name']} already exists in {category.name}")
        identity = spec.get("tag_id") or f"urn:vmomi:InventoryServiceTag:{self._new_uuid()}:GLOBAL"
        self._tags[identity] = _Tag(identity, category.id, spec["name"], spec.get("description") or "")
        self._objects[identity] = set()
        return identity

    def _tag_update(self, parameters: Mapping[str, Any]) -> None:
        tag, spec = self._tag(parameters["tag_id"]), parameters["update_spec"]
        for name in ("name", "description"):
            if spec.get(name) is not None:
                setattr(tag, name, spec[name])

    def _tag_delete(self, parameters: Mapping[str, Any]) -> None:
        tag = self._tag(parameters["tag_id"])
        del self._tags[tag.id], self._objects[tag.id]

    def _tag_list_tags_for_category(self, parameters: Mapping[str, Any]) -> list[str]:
        category = self._category(parameters["category_id"])
        return [tag.id for tag in self._tags.values() if tag.category_id == category.id]

    # -- associations

    def _tag_association_attach(self, parameters: Mapping[str, Any]) -> None:
        self._attach(self._tag(parameters["tag_id"]), _object(parameters["object_id"]))

    def _tag_association_detach(self, parameters: Mapping[str, Any]) -> None:
        self._detach(self._tag(parameters["tag_id"]), _object(parameters["object_id"]))

    def _tag_association_attach_tag_to_multiple_objects(self, parameters: Mapping[str, Any]) -> Struct:
        for each in parameters["object_ids"]:
            self._attach(self._tag(parameters["tag_id"]), _object(each))
        return _BATCH_SUCCESS

    def _tag_association_attach_multiple_tags_to_object(self, parameters: Mapping[str, Any]) -> Struct:
        for tag_id in parameters["tag_ids"]:
            self._attach(self._tag(tag_id), _object(parameters["object_id"]))
        return _BATCH_SUCCESS

    def _tag_association_detach_multiple_tags_from_object(self, parameters: Mapping[str, Any]) -> Struct:
        for tag_id in parameters["tag_ids"]:
            self._detach(self._tag(tag_id), _object(parameters["object_id"]))
        return _BATCH_SUCCESS

    def _tag_association_list_attached_tags(self, parameters: Mapping[str, Any]) -> list[str]:
        return self._tags_of(_object(parameters["object_id"]))

    def _tag_association_list_attached_tags_on_objects(self, parameters: Mapping[str, Any]) -> list[Struct]:
        return [
            Struct(f"{TAGGING}.tag_association.object_to_tags", {"object_id": _dynamic_id(each), "tag_ids": tags})
            for each in map(_object, parameters["object_ids"])
            if (tags := self._tags_of(each))
        ]

    def _tag_association_list_attached_objects(self, parameters: Mapping[str, Any]) -> list[Struct]:
        return [_dynamic_id(each) for each in sorted(self._objects[self._tag(parameters["tag_id"]).id])]

    def _tag_association_list_attached_objects_on_tags(self, parameters: Mapping[str, Any]) -> list[Struct]:
        return [
            Struct(
                f"{TAGGING}.tag_association.tag_to_objects",
                {"tag_id": tag_id, "object_ids": self._tag_association_list_attached_objects({"tag_id": tag_id})},
            )
            for tag_id in parameters["tag_ids"]
        ]

    def _attach(self, tag: _Tag, each: Object) -> None:
        if each not in self._objects[tag.id]:
            self._objects[tag.id].add(each)
            self._record("attach", each, tag.id)

    def _detach(self, tag: _Tag, each: Object) -> None:
        if each in self._objects[tag.id]:
            self._objects[tag.id].remove(each)
            self._record("detach", each, tag.id)

    def _tags_of(self, each: Object) -> list[str]:
        return [tag_id for tag_id, objects in self._objects.items() if each in objects]

    def _category(self, identity: str) -> _Category:
        if identity not in self._categories:
            raise TagFault("not_found", f"category {identity} not found")
        return self._categories[identity]

    def _tag(self, identity: str) -> _Tag:
        if identity not in self._tags:
            raise TagFault("not_found", f"tag {identity} not found")
        return self._tags[identity]


_BATCH_SUCCESS = Struct(f"{TAGGING}.tag_association.batch_result", {"success": True, "error_messages": []})


def _object(parameter: Mapping[str, str]) -> Object:
    return parameter["type"], parameter["id"]


def _dynamic_id(each: Object) -> Struct:
    return Struct("com.vmware.vapi.std.dynamic_ID", {"type": each[0], "id": each[1]})
