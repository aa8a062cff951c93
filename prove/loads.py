"""The callers, and the loads that they put on a fleet. A load is one function: it sends requests with one key, and nothing else has that key."""

import asyncio
import time

from checker import GRANTED, REFUSED, UNKNOWN, Answer

SECOND = 1_000_000_000
# Requests of one caller that are under way at a time.
AT_ONCE = 20


class Caller:
    """Sends the requests of one key to the instances in turn, and keeps the answers."""

    def __init__(self, addresses, key):
        self.addresses, self.head = addresses, f"GET / HTTP/1.1\r\nHost: prove\r\nX-Api-Key: {key}\r\n\r\n".encode()
        self.idle, self.turn, self.answers = {address: [] for address in addresses}, 0, []

    async def ask(self):
        """One request; the answer, and what `Retry-After` said."""
        address = self.addresses[self.turn % len(self.addresses)]
        self.turn += 1
        sent, verdict, retry_after = time.monotonic_ns(), UNKNOWN, None
        try:
            async with asyncio.timeout(10):
                # Those that the server has closed meanwhile are not used again.
                self.idle[address] = [idle for idle in self.idle[address] if not idle[0].at_eof()]
                connection = self.idle[address].pop() if self.idle[address] else await asyncio.open_connection(*address)
                sent = time.monotonic_ns()
                status, headers = await self.exchange(*connection)
            verdict = {200: GRANTED, 429: REFUSED}.get(status, UNKNOWN)
            retry_after = headers.get("retry-after")
            if headers.get("connection", "").lower() == "close":
                connection[1].close()
            else:
                self.idle[address].append(connection)
        except (OSError, EOFError, TimeoutError, ValueError):
            await asyncio.sleep(0.05)
        self.answers.append(Answer(sent, time.monotonic_ns(), verdict))
        return self.answers[-1], retry_after

    async def exchange(self, reader, writer):
        writer.write(self.head)
        lines = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
        headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines[1:])}
        if headers.get("transfer-encoding", "").lower() == "chunked":
            while size := int((await reader.readline()).split(b";")[0], 16):
                await reader.readexactly(size + 2)
            await reader.readline()
        else:
            await reader.readexactly(int(headers.get("content-length", 0)))
        return int(lines[0].split()[1]), headers

    async def burst(self, requests):
        """So many requests, as fast as the answers come."""
        left = iter(range(requests))

        async def one_after_the_other():
            for _ in left:
                await self.ask()

        await asyncio.gather(*(one_after_the_other() for _ in range(AT_ONCE)))

    async def steady(self, seconds, pause):
        """Callers that pause between their requests."""
        end = time.monotonic() + seconds

        async def again(number):
            await asyncio.sleep(pause * number / AT_ONCE)
            while time.monotonic() < end:
                await self.ask()
                await asyncio.sleep(pause)

        await asyncio.gather(*(again(number) for number in range(AT_ONCE)))

    def close(self):
        for connections in self.idle.values():
            for _, writer in connections:
                writer.close()


async def flood(caller):
    """Ten times the rate for eight seconds, after one burst."""
    await caller.burst(150)
    await caller.steady(8, 0.2)


async def pauses(caller):
    """A burst every 2.5 seconds."""
    for pause in (2.5, 2.5, 2.5, 2.5, 0):
        await caller.burst(130)
        await asyncio.sleep(pause)


async def edge(caller):
    """One request opens a window of ten seconds, at the clock's own ten seconds; a burst before its end, and a burst after it."""
    await asyncio.sleep(10 - time.time() % 10 + 0.05)
    begin = time.monotonic()
    await caller.ask()
    for moment in (9.2, 10.3):
        await asyncio.sleep(max(begin + moment - time.monotonic(), 0))
        await caller.burst(130)


async def rest(caller):
    """A burst after five seconds of rest, and one after eleven."""
    for pause in (5, 11, 0):
        await caller.burst(130)
        await asyncio.sleep(pause)


async def outage(caller, store):
    """Five times the rate while the store is paused for two seconds, killed two seconds later, and brought back after two more."""

    async def trouble():
        await asyncio.sleep(2)
        store.pause()
        await asyncio.sleep(2)
        store.go_on()
        await asyncio.sleep(2)
        store.kill()
        await asyncio.sleep(2)
        await asyncio.to_thread(store.start)

    await asyncio.gather(caller.burst(150), trouble(), caller.steady(15, 0.4))


async def lone(caller):
    """A caller alone: it spends its burst, waits as long as it is told and not longer, and asks once. What it was told, and that answer."""
    for _ in caller.addresses:
        await caller.burst(130)
    for _ in range(20):
        await caller.burst(40)
        answer, said = await caller.ask()
        if answer.verdict == REFUSED:
            break
    else:
        return None, None
    if said is None or not said.replace(".", "", 1).isdigit():
        return None, None
    await asyncio.sleep(max(float(said) - (time.monotonic_ns() - answer.received) / SECOND, 0))
    return float(said), (await caller.ask())[0]


LOADS = {"flood": flood, "pauses": pauses, "edge": edge, "rest": rest}
