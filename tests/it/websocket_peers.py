"""A real WebSocket server and client: started by websocket.rs, told what to do line by line, answers each with a line.

The server answers each message with "re:" before it, and remembers how each of its connections ended.
"""
import asyncio
import json
import sys

import websockets

ENDED = asyncio.Queue()


async def serve(socket, *_):
    try:
        async for message in socket:
            if message == "large":
                # In several frames.
                await socket.send(["x" * 100_000] * 10)
            else:
                await socket.send("re:" + message)
    except websockets.ConnectionClosed:
        pass
    await ENDED.put(socket.close_code)


def say(what):
    print(json.dumps(what), flush=True)


async def main():
    server = await websockets.serve(serve, "127.0.0.1", 0, max_size=None)
    say(server.sockets[0].getsockname()[1])
    loop = asyncio.get_running_loop()
    client = None
    while line := await loop.run_in_executor(None, sys.stdin.readline):
        order = json.loads(line)
        if order["do"] == "open":
            client = await websockets.connect("ws://%s/socket" % order["target"], max_size=None)
            say("open")
        elif order["do"] == "ask":
            await client.send(order["text"])
            say(len(await client.recv()) if order["text"] == "large" else await client.recv())
        elif order["do"] == "close":
            await client.close()
            say([client.close_code, await ENDED.get()])
        elif order["do"] == "end":
            # How the other side ends it, as the client sees it and as the server does.
            await client.wait_closed()
            say([client.close_code, await ENDED.get()])


asyncio.run(main())
