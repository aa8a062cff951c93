"""Memory: what rests in a proxy. Idle processes, idle connections, keys of the limiter."""
import socket, subprocess, time

import peers
from peers import FULL
from processes import pss_kib


def served(s):
    """The connection, after a request of 1 KiB over it."""
    s.sendall(b"GET /1k HTTP/1.1\r\nHost: a\r\nx-api-key: idle\r\n\r\n")
    got = b""
    while b"\r\n\r\n" not in got or len(got.split(b"\r\n\r\n", 1)[1]) < 1024:
        got += s.recv(65536)
    return s


def idle_connections(port, count):
    held = []
    for _ in range(count):
        held.append(served(socket.create_connection(("127.0.0.1", port), 5)))
    return held


def many_keys(port, count, same=False):
    """Asks once with each of `count` keys of 20 bytes (or as often with one), pipelined."""
    with socket.create_connection(("127.0.0.1", port), 5) as s:
        for first in range(0, count, 50):
            some = range(first, min(first + 50, count))
            s.sendall(b"".join(b"GET /1k HTTP/1.1\r\nHost: a\r\nx-api-key: %020d\r\n\r\n" % (0 if same else i + 1) for i in some))
            left, got = len(some), b""
            while left:
                got += s.recv(1 << 18)
                while (end := got.find(b"\r\n\r\n")) >= 0 and len(got) >= end + 4 + 1024:
                    if not got.startswith(b"HTTP/1.1 200"):
                        raise SystemExit(f"not admitted: {got[:100]}")
                    got, left = got[end + 4 + 1024:], left - 1


def idle_tls(port, count):
    """TLS 1.3 connections that served a request each, and rest."""
    import ssl
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    held = []
    for _ in range(count):
        held.append(served(context.wrap_socket(socket.create_connection(("127.0.0.1", port), 5))))
    return held


def idle_h2(port, count):
    """HTTP/2 connections (cleartext, prior knowledge) that served a request each, and rest."""
    text = lambda s: bytes([len(s)]) + s
    # RFC 7541: GET and http by index, the path, the authority and the key as literals that are not indexed.
    block = b"\x82\x86\x04" + text(b"/1k") + b"\x01" + text(b"a") + b"\x00" + text(b"x-api-key") + text(b"idle")
    frame = lambda kind, flags, stream, body=b"": len(body).to_bytes(3, "big") + bytes([kind, flags]) + stream.to_bytes(4, "big") + body
    held = []
    for _ in range(count):
        s = socket.create_connection(("127.0.0.1", port), 5)
        s.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + frame(4, 0, 0) + frame(4, 1, 0) + frame(1, 5, 1, block))
        got, ended = b"", False
        while not ended:
            got += s.recv(65536)
            while len(got) >= 9 and len(got) >= 9 + int.from_bytes(got[:3], "big"):
                size, kind, flags = int.from_bytes(got[:3], "big"), got[3], got[4]
                ended |= kind == 0 and flags & 1 == 1
                got = got[9 + size:]
        held.append(s)
    return held


CONNECTIONS, KEYS, SECURED = 10_000, 150_000, 1_000


def memory(args, work, up):
    print(f"\nmemory (proportional set size of the process tree, 2 workers; {CONNECTIONS} connections that served a request each; "
          f"{KEYS} keys of 20 bytes, Tollgate's table 4 MiB)")
    print("| proxy | idle MiB | KiB per idle connection | bytes per key |\n|---|---|---|---|")
    makers = {"tollgate": lambda: peers.tollgate(args.tollgate, work, up.port, 2, memory="4MiB"), "nginx": lambda: peers.nginx(work, up.port, 2, FULL),
              "haproxy": lambda: peers.haproxy(work, up.port, 2, FULL)}
    for name, make in makers.items():
        if name != "tollgate" and args.peers and name not in args.peers.split(","):
            continue
        proxy = make()
        try:
            time.sleep(1)
            idle = pss_kib(proxy.process.pid)
            many_keys(proxy.port, 20_000, same=True)
            before = pss_kib(proxy.process.pid)
            many_keys(proxy.port, KEYS)
            keyed = pss_kib(proxy.process.pid)
            # HAProxy reserves two descriptors a connection: more do not fit under a limit of 20,000.
            count = 8_900 if name == "haproxy" else CONNECTIONS
            held = idle_connections(proxy.port, count)
            time.sleep(2)
            full = pss_kib(proxy.process.pid)
            print(f"| {name} | {idle / 1024:.1f} | {(full - keyed) / count:.1f} | {(keyed - before) * 1024 / KEYS:.1f} |", flush=True)
            for s in held:
                s.close()
        finally:
            proxy.stop()
    certificate = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2",
                   "-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost", "-keyout", str(work / "key.pem"), "-out", str(work / "cert.pem")]
    subprocess.run(certificate, check=True, capture_output=True)
    for kind, hold, tls in [("TLS", idle_tls, True), ("HTTP/2", idle_h2, False)]:
        proxy = peers.tollgate(args.tollgate, work, up.port, 2, tls=tls)
        try:
            for s in hold(proxy.port, 50):
                s.close()
            time.sleep(1)
            before = pss_kib(proxy.process.pid)
            held = hold(proxy.port, SECURED)
            time.sleep(2)
            print(f"tollgate, an idle {kind} connection: {(pss_kib(proxy.process.pid) - before) / SECURED:.1f} KiB ({SECURED} of them)", flush=True)
            for s in held:
                s.close()
        finally:
            proxy.stop()
