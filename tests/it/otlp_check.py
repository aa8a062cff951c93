"""Decodes OTLP documents (JSON) by the definitions of the package opentelemetry-proto, which `./check` installs.

Reads a document on each line, writes its resource and its spans. A member that the definitions do not know is an error.
"""

import base64
import json
import sys

sys.path.insert(0, sys.argv[1])

from google.protobuf import json_format
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

LENGTHS = {"traceId": 16, "spanId": 8, "parentSpanId": 8}


def recoded(value, decode, encode):
    """OTLP writes ids in hexadecimal digits, where JSON of protobuf has base64."""
    if isinstance(value, list):
        return [recoded(one, decode, encode) for one in value]
    if not isinstance(value, dict):
        return value
    result = {}
    for name, member in value.items():
        if name in LENGTHS and member:
            raw = decode(member)
            assert len(raw) == LENGTHS[name], (name, member)
            result[name] = encode(raw)
        else:
            result[name] = recoded(member, decode, encode)
    return result


def plain(attributes):
    def value(any_value):
        kind, content = next(iter(any_value.items()))
        return int(content) if kind == "intValue" else content

    return {one["key"]: value(one["value"]) for one in attributes}


for line in sys.stdin:
    document = recoded(json.loads(line), bytes.fromhex, lambda raw: base64.b64encode(raw).decode())
    message = json_format.ParseDict(document, ExportTraceServiceRequest(), ignore_unknown_fields=False)
    # What a collector gets from the binary form.
    message = ExportTraceServiceRequest.FromString(message.SerializeToString())
    read = recoded(json_format.MessageToDict(message), base64.b64decode, bytes.hex)
    [resource] = read["resourceSpans"]
    [scope] = resource["scopeSpans"]
    spans = [{**span, "attributes": plain(span["attributes"])} for span in scope["spans"]]
    print(json.dumps({"resource": plain(resource["resource"]["attributes"]), "spans": spans}), flush=True)
