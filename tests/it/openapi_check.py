"""Compares responses of a gateway with a description of OpenAPI 3.1, the file that is its argument.

Reads a line of JSON for each exchange: method, path (as in the document), status, type (the media type), body (JSON or
text), request (a JSON body that was sent). Writes a list of what does not fit.
"""

import json
import sys

from jsonschema import Draft202012Validator

document = json.load(open(sys.argv[1]))


def strict(schema):
    """The same schema, in which an object has no members but the described ones."""
    if isinstance(schema, list):
        return [strict(one) for one in schema]
    if not isinstance(schema, dict):
        return schema
    schema = {key: strict(value) for key, value in schema.items()}
    if isinstance(schema.get("properties"), dict) and "type" in schema:
        schema.setdefault("additionalProperties", False)
    return schema


SCHEMAS = strict(document["components"]["schemas"])


def flaws(schema, value, where):
    whole = {**strict(schema), "components": {"schemas": SCHEMAS}}
    Draft202012Validator.check_schema(whole)
    errors = Draft202012Validator(whole, format_checker=Draft202012Validator.FORMAT_CHECKER).iter_errors(value)
    return [f"{where}: {error.json_path}: {error.message[:300]}" for error in errors]


def check(exchange):
    method, path, status = exchange["method"].lower(), exchange["path"], str(exchange["status"])
    where = f"{method} {path} {status}"
    operation = document["paths"].get(path, {}).get(method)
    if operation is None:
        return [f"{where}: not described"]
    response = operation["responses"].get(status)
    if response is None:
        return [f"{where}: the status is not described"]
    if exchange["type"] == "" and exchange["body"] == "" and "content" not in response:
        found = []
    else:
        media = response.get("content", {}).get(exchange["type"])
        if media is None:
            return [f"{where}: the type {exchange['type']} is not described"]
        found = flaws(media["schema"], exchange["body"], where)
    if exchange.get("request") is not None and status in ("200", "204"):
        schema = operation["requestBody"]["content"]["application/json"]["schema"]
        found += flaws(schema, exchange["request"], f"{where}, request")
    return found


for name, schema in SCHEMAS.items():
    Draft202012Validator.check_schema({**schema, "components": {"schemas": SCHEMAS}})
for line in sys.stdin:
    print(json.dumps(check(json.loads(line))), flush=True)
