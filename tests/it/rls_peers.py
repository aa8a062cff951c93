"""grpcio as a client of the rate limit service. It knows the messages from the service's own reflection.

    rls_peers.py ADDRESS      reads commands line by line, answers each with a line of JSON
"""
import json
import sys
import threading

import grpc
from google.protobuf import descriptor_pb2, descriptor_pool, json_format, message_factory

CHANNEL = grpc.insecure_channel(sys.argv[1])
RLS = "envoy.service.ratelimit.v3"
HEALTH = "grpc.health.v1"


def varint(number):
    out = b""
    while True:
        number, low = number >> 7, number & 0x7F
        out += bytes([low | (0x80 if number else 0)])
        if not number:
            return out


def field(number, value):
    return varint(number << 3 | 2) + varint(len(value)) + value


def fields(data):
    """The fields of a message, by number; strings and messages as bytes."""
    found, at = {}, 0

    def number():
        nonlocal at
        value, shift = 0, 0
        while True:
            byte = data[at]
            at += 1
            value |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                return value

    while at < len(data):
        tag = number()
        value = number()
        if tag & 7 == 2:
            value, at = data[at:at + value], at + value
        found.setdefault(tag >> 3, []).append(value)
    return found


def reflect(version, *asked):
    """The raw responses to raw requests."""
    call = CHANNEL.stream_stream(f"/grpc.reflection.{version}.ServerReflection/ServerReflectionInfo")
    return [fields(response) for response in call(iter(asked), timeout=10)]


def services(version):
    [response] = reflect(version, field(7, b""))
    return [fields(one)[1][0].decode() for one in fields(response[6][0])[1]]


def pool():
    made, known = descriptor_pool.DescriptorPool(), set()
    files = {}
    for name in services("v1"):
        [response] = reflect("v1", field(4, name.encode()))
        for data in fields(response[4][0])[1]:
            file = descriptor_pb2.FileDescriptorProto.FromString(data)
            files[file.name] = file

    def add(name):
        if name not in known:
            known.add(name)
            for other in files[name].dependency:
                add(other)
            made.Add(files[name])

    for name in files:
        add(name)
    return made


POOL = pool()


def message(name):
    return message_factory.MessageFactory(POOL).GetPrototype(POOL.FindMessageTypeByName(name))


def method(kind, service, name, answer):
    return getattr(CHANNEL, kind)(
        f"/{service}/{name}",
        request_serializer=lambda request: request.SerializeToString(),
        response_deserializer=message(answer).FromString,
    )


def ask(command):
    request = message(f"{RLS}.RateLimitRequest")()
    json_format.ParseDict(command["request"], request)
    call = method("unary_unary", f"{RLS}.RateLimitService", "ShouldRateLimit", f"{RLS}.RateLimitResponse")
    response = call(request, timeout=10)
    said = json_format.MessageToDict(response, including_default_value_fields=True)
    said["rawBody"] = response.raw_body.decode()
    return said


def raw(command):
    """Sends these bytes as the message."""
    call = CHANNEL.unary_unary(
        f"/{RLS}.RateLimitService/ShouldRateLimit",
        request_serializer=bytes.fromhex,
        response_deserializer=message(f"{RLS}.RateLimitResponse").FromString,
    )
    return json_format.MessageToDict(call(command["hex"], timeout=10), including_default_value_fields=True)


def health(command):
    request = message(f"{HEALTH}.HealthCheckRequest")(service=command.get("service", ""))
    call = method("unary_unary", f"{HEALTH}.Health", "Check", f"{HEALTH}.HealthCheckResponse")
    return json_format.MessageToDict(call(request, timeout=10))["status"]


WATCHED = []


def watch(command):
    call = method("unary_stream", f"{HEALTH}.Health", "Watch", f"{HEALTH}.HealthCheckResponse")
    WATCHED.append(call(message(f"{HEALTH}.HealthCheckRequest")(), timeout=60))
    return next_status(command)


def next_status(command):
    try:
        return json_format.MessageToDict(next(WATCHED[-1]))["status"]
    except StopIteration:
        return "ended"


def flood(command):
    """Asks so many times from each of many threads; counts the outcomes."""
    counts = {"OK": 0, "OVER_LIMIT": 0, "error": 0}
    lock = threading.Lock()

    def run():
        for _ in range(command["each"]):
            try:
                code = ask(command)["overallCode"]
            except grpc.RpcError:
                code = "error"
            with lock:
                counts[code] += 1

    threads = [threading.Thread(target=run) for _ in range(command["threads"])]
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]
    return counts


COMMANDS = {
    "ask": ask,
    "raw": raw,
    "flood": flood,
    "health": health,
    "watch": watch,
    "next": next_status,
    "services": lambda command: services(command["version"]),
    "symbol": lambda command: 4 in reflect("v1", field(4, command["name"].encode()))[0],
}

print(json.dumps("ready"), flush=True)
for line in sys.stdin:
    command = json.loads(line)
    try:
        said = COMMANDS[command["do"]](command)
    except grpc.RpcError as error:
        said = {"error": error.code().name, "words": error.details()}
    print(json.dumps(said), flush=True)
