"""What OpenAPI 3.1 and AsyncAPI 3.0 let a document say, of the parts that ours use; every other key is an error.

Made after their published schemas, which pull in a validator each; a typing error, such as a comma that splits a
description, becomes a key that no object has.
"""

from __future__ import annotations

from typing import Any

TEXT: dict[str, Any] = {"type": "string", "minLength": 1}
METHODS = ("get", "put", "post", "delete", "patch", "head", "options")


def closed(required: str = "", /, **properties: Any) -> dict[str, Any]:
    """An object with these keys and no others; `required` names some of them."""
    return {
        "type": "object", "required": required.split(), "additionalProperties": False,
        "properties": {"$ref" if name == "ref" else name: shape for name, shape in properties.items()},
    }  # fmt: skip


def table(shape: dict[str, Any], names: str = ".") -> dict[str, Any]:
    """An object whose keys match `names`, each with such a value."""
    return {"type": "object", "patternProperties": {names: shape}, "additionalProperties": False, "minProperties": 1}


def either(*shapes: dict[str, Any]) -> dict[str, Any]:
    return {"anyOf": list(shapes)}


REF = closed("$ref", ref={"type": "string", "pattern": "^#/"})
INFO = closed("title version", title=TEXT, version=TEXT, summary=TEXT, description=TEXT)
SECURITY = {"type": "array", "items": table({"type": "array", "items": TEXT})}
# JSON Schema, of the keywords in use: one that is misspelt would be a rule that nobody reads.
SCHEMA = either(REF, closed(
    type={"enum": ["object", "string", "integer", "number", "boolean", "array"]}, const=TEXT,
    required={"type": "array", "items": TEXT}, properties=table({"$ref": "#/$defs/schema"}),
    items={"$ref": "#/$defs/schema"}, enum={"type": "array"}, default={}, examples={"type": "array"}, description=TEXT,
    minimum={"type": "number"}, maximum={"type": "number"}, maxLength={"type": "integer"},
    maxItems={"type": "integer"}, format={"enum": ["binary"]},
))  # fmt: skip
SCHEMA_HERE = {"$ref": "#/$defs/schema"}
CONTENT = table(closed("schema", schema=SCHEMA_HERE, example={}), r"^[a-z]+/[a-z0-9.*+-]+$")
RESPONSE = either(REF, closed(
    "description", description=TEXT, content=CONTENT, headers=table(closed("schema", schema=SCHEMA_HERE)),
))  # fmt: skip
OPERATION = closed(
    "responses", summary=TEXT, description=TEXT, security=SECURITY, responses=table(RESPONSE, r"^([1-5]\d\d|default)$"),
    requestBody=closed("content", required={"type": "boolean"}, content=CONTENT),
)
PARAMETER = closed("name in required schema", **{"in": {"const": "path"}}, name=TEXT, required={"const": True},
                   schema=SCHEMA_HERE)  # fmt: skip
PATH = closed(parameters={"type": "array", "items": PARAMETER}, **dict.fromkeys(METHODS, OPERATION))
OPENAPI = {"$defs": {"schema": SCHEMA}} | closed(
    "openapi info paths", openapi={"const": "3.1.0"}, info=INFO, security=SECURITY, paths=table(PATH, "^/"),
    components=closed(
        schemas=table(SCHEMA_HERE), responses=table(RESPONSE),
        securitySchemes=table(either(
            closed("type in name", type={"const": "apiKey"}, name=TEXT, **{"in": {"enum": ["header", "query"]}}),
            closed("type scheme", type={"const": "http"}, scheme=TEXT),
        )),
    ),
)  # fmt: skip
MESSAGE = closed("payload", payload=SCHEMA_HERE, contentType=TEXT, summary=TEXT)
ASYNCAPI = {"$defs": {"schema": SCHEMA}} | closed(
    "asyncapi info channels operations", asyncapi={"const": "3.0.0"}, info=INFO,
    channels=table(closed("address description messages", address=TEXT, description=TEXT, messages=table(MESSAGE))),
    operations=table(closed("action channel", action={"enum": ["send", "receive"]}, channel=REF,
                            messages={"type": "array", "items": REF})),
)  # fmt: skip
