#!/usr/bin/env python3
"""Redis' own time for one call of each script: INFO commandstats, usec of EVALSHA, the median of five rounds."""
import pathlib, socket, struct, subprocess, time

SCRIPTS = pathlib.Path(__file__).parents[2] / "crates/store/src/redis"
KINDS = "level head token_bucket stepped sliding_window sliding_log in_flight decide".split()
GENERAL = "".join((SCRIPTS / f"draw/{kind}.lua").read_text() for kind in KINDS)
PLAIN = (SCRIPTS / "draw/level.lua").read_text() + (SCRIPTS / "draw_bucket.lua").read_text()
N, P, FULL, PORT = 1, 60, 60 * 10**9, 7399


def groups(buckets, limits):
    return [list(range(first, first + limits)) for first in range(0, buckets, limits)]


def general(buckets, limits):
    """Version 6 of its arguments: one token bucket's shape, and groups of one request each."""
    numbers = [6, 0, 77, 123456, 0, 0, 1, 1, 0, N, P, FULL, 0, 0, -FULL, 10**9, 0, 0, 0] + [0] * buckets + [0, 0]
    numbers.append(len(groups(buckets, limits)))
    for group in groups(buckets, limits):
        numbers += [1, len(group)] + [number for bucket in group for number in (bucket, 1, 1)]
    packed = b"".join(bytes([one]) if 0 <= one < 128 else b"\xd3" + struct.pack(">q", one) for one in numbers + [0])
    return b"\xdd" + struct.pack(">I", len(numbers) + 1) + packed


def plain(buckets, limits):
    head = struct.pack("<ddBddddd", 0, 123456, 1, N, P, FULL, P, P) + bytes(buckets)
    claims = lambda group: b"".join(struct.pack("<BH", 0, bucket) for bucket in group)
    return head + b"".join(struct.pack("<HB", 1, len(group)) + claims(group) for group in groups(buckets, limits))


server = subprocess.Popen(["redis-server", "--port", str(PORT), "--save", ""], stdout=subprocess.DEVNULL)
time.sleep(0.5)
link = socket.create_connection(("127.0.0.1", PORT))
replies = link.makefile("rb")


def ask(*words):
    words = [word if isinstance(word, bytes) else str(word).encode() for word in words]
    link.sendall(b"*%d\r\n" % len(words) + b"".join(b"$%d\r\n%s\r\n" % (len(word), word) for word in words))
    line = replies.readline()
    assert line[:1] in b"+$:", line
    return replies.read(int(line[1:]) + 2)[:-2] if line[:1] == b"$" else line


def usec():
    lines = ask("INFO", "commandstats").decode().split("\r\n")
    stats = next(line for line in lines if line.startswith("cmdstat_evalsha:"))
    return float(stats.split("usec_per_call=")[1].split(",")[0])


for buckets, limits in [(1, 1), (64, 1), (64, 2)]:
    for name, script, argument in [("general", GENERAL, general), ("plain", PLAIN, plain)]:
        sha, rounds = ask("SCRIPT", "LOAD", script), []
        ask("FLUSHALL")
        for _ in range(5):
            ask("CONFIG", "RESETSTAT")
            for call in range(1000):
                keys = [b"tollgate:{aaaaaa}:%022d" % (call % 20 * 64 + bucket) for bucket in range(buckets)]
                ask("EVALSHA", sha, buckets, *keys, argument(buckets, limits))
            rounds.append(usec())
        print(f"{buckets} buckets, {limits} a request, {name}: {sorted(rounds)[2]:.0f} us")
server.terminate()
