"""A real gRPC server and client: started by grpc.rs, told what to do line by line, answers each with a line.

    grpc_peers.py FOLDER      serves in clear text and with FOLDER/site.pem, prints both ports, then reads commands
"""
import json
import pathlib
import sys
import threading
from concurrent import futures

import grpc

FOLDER = pathlib.Path(sys.argv[1])
CANCELLED = threading.Event()


class Service(grpc.GenericRpcHandler):
    def service(self, call):
        name = call.method.rsplit("/", 1)[1]
        return {
            "Unary": grpc.unary_unary_rpc_method_handler(unary),
            "ServerStream": grpc.unary_stream_rpc_method_handler(server_stream),
            "ClientStream": grpc.stream_unary_rpc_method_handler(client_stream),
            "Bidi": grpc.stream_stream_rpc_method_handler(bidi),
            "Fail": grpc.unary_unary_rpc_method_handler(fail),
            "Slow": grpc.unary_unary_rpc_method_handler(slow),
        }.get(name)


def unary(request, context):
    sent = dict(context.invocation_metadata())
    context.send_initial_metadata((("x-initial", "1"),))
    context.set_trailing_metadata((("x-trailing", sent.get("x-sent", "none")), ("x-raw-bin", b"\x00\xff")))
    return b"re:" + request


def server_stream(request, context):
    for number in range(int(request)):
        yield b"%d" % number


def client_stream(requests, context):
    return b"%d" % sum(len(request) for request in requests)


def bidi(requests, context):
    for request in requests:
        yield b"re:" + request
    context.set_trailing_metadata((("x-trailing", "bidi"),))


def fail(request, context):
    context.abort(grpc.StatusCode.NOT_FOUND, "there is no such thing: \u00e4")


def slow(request, context):
    gone = threading.Event()
    context.add_callback(gone.set)
    if gone.wait(20):
        CANCELLED.set()
    return b""


def channel(order):
    options = [("grpc.enable_retries", 0), ("grpc.max_receive_message_length", -1)]
    if not order.get("tls"):
        return grpc.insecure_channel(order["target"], options)
    read = lambda name: (FOLDER / name).read_bytes() if name else None
    who = order.get("who")
    credentials = grpc.ssl_channel_credentials(
        read("one.pem"), read(who and who + ".key"), read(who and who + ".pem"))
    return grpc.secure_channel(order["target"], credentials, options)


def status(call, request=b"x", **more):
    try:
        call(request, timeout=more.pop("timeout", 20), **more)
        return "OK"
    except grpc.RpcError as error:
        return error.code().name


def suite(order):
    """Every kind of call; what went wrong."""
    wrong = []

    def check(what, holds):
        if not holds:
            wrong.append(what)

    with channel(order) as open_channel:
        method = lambda name, kind: getattr(open_channel, kind)("/t.T/" + name)
        reply, call = method("Unary", "unary_unary").with_call(
            b"hello", timeout=20, metadata=(("x-sent", "mark"),))
        check("unary", reply == b"re:hello")
        check("initial metadata", ("x-initial", "1") in call.initial_metadata())
        check("trailing metadata", ("x-trailing", "mark") in call.trailing_metadata())
        check("binary metadata", ("x-raw-bin", b"\x00\xff") in call.trailing_metadata())
        large = b"x" * 3_000_000
        check("a large message", method("Unary", "unary_unary")(large, timeout=20) == b"re:" + large)
        numbers = [int(reply) for reply in method("ServerStream", "unary_stream")(b"500", timeout=20)]
        check("server streaming", numbers == list(range(500)))
        check("no message at all", list(method("ServerStream", "unary_stream")(b"0", timeout=20)) == [])
        size = method("ClientStream", "stream_unary")(iter([b"x" * 1000] * 500), timeout=20)
        check("client streaming", size == b"500000")
        turn = threading.Semaphore(0)

        def requests():
            for number in range(100):
                yield b"%d" % number
                turn.acquire()

        call = method("Bidi", "stream_stream")(requests(), timeout=20)
        for number in range(100):
            # In lock-step: the next goes out only when this has come back.
            check("bidirectional %d" % number, next(call) == b"re:%d" % number)
            turn.release()
        check("the end of both directions", next(call, None) is None)
        check("trailers of a stream", ("x-trailing", "bidi") in call.trailing_metadata())
        try:
            method("Fail", "unary_unary")(b"", timeout=20)
            wrong.append("an error is an error")
        except grpc.RpcError as error:
            check("an error's code", error.code() == grpc.StatusCode.NOT_FOUND)
            check("an error's words", error.details() == "there is no such thing: \u00e4")
        CANCELLED.clear()
        check("a deadline", status(method("Slow", "unary_unary"), timeout=0.5) == "DEADLINE_EXCEEDED")
        check("the server hears of it", CANCELLED.wait(20))
        CANCELLED.clear()
        call = method("Slow", "unary_unary").future(b"", timeout=20)
        threading.Timer(0.3, call.cancel).start()
        check("a cancelled call", isinstance(wait(call), grpc.FutureCancelledError))
        check("the server hears of that", CANCELLED.wait(20))
    return wrong


def wait(call):
    try:
        return call.result()
    except Exception as error:
        return error


def call(order):
    """The status of one unary call, and its words."""
    with channel(order) as open_channel:
        try:
            open_channel.unary_unary(order["method"])(b"x", timeout=20)
            return ["OK", ""]
        except grpc.RpcError as error:
            return [error.code().name, error.details()]


def through(order):
    """A bidirectional stream; in its middle it waits for a line."""
    with channel(order) as open_channel:
        go = threading.Semaphore(0)

        def requests():
            for number in range(4):
                yield b"%d" % number
                go.acquire()

        stream = open_channel.stream_stream("/t.T/Bidi")(requests(), timeout=60)
        replies = []
        for number in range(4):
            if number == 2:
                say("in the middle")
                sys.stdin.readline()
            replies.append(next(stream).decode())
            go.release()
        return replies + [next(stream, None)]


def say(what):
    print(json.dumps(what), flush=True)


def main():
    server = grpc.server(futures.ThreadPoolExecutor(16), handlers=[Service()])
    server_options = grpc.ssl_server_credentials(
        [((FOLDER / "site.key").read_bytes(), (FOLDER / "site.pem").read_bytes())])
    ports = [server.add_insecure_port("127.0.0.1:0"), server.add_secure_port("127.0.0.1:0", server_options)]
    server.start()
    say(ports)
    for line in sys.stdin:
        order = json.loads(line)
        say({"suite": suite, "call": call, "through": through}[order["do"]](order))


main()
