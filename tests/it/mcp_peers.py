"""MCP's own server and client, over streamable HTTP: the server says its port, then each line that comes names what a client does
at an address, and the line that goes back has what became of it.
"""

import asyncio
import json
import sys

# Before the packages of the system, which may have other versions of what it needs.
sys.path.insert(0, sys.argv[1])

import uvicorn  # noqa: E402
from mcp import Client, MCPError  # noqa: E402
from mcp.server.mcpserver import Context, MCPServer  # noqa: E402

TOOLS = MCPServer("tools")


@TOOLS.tool()
def search(text: str) -> str:
    """Finds a text."""
    return f"found {text}"


@TOOLS.tool()
async def count(to: int, ctx: Context) -> int:
    """Counts, and reports each number."""
    for number in range(to):
        await ctx.report_progress(number + 1, to)
    return to


async def call(client, order):
    told = []

    async def progress(done, total, message):
        told.append(done)

    try:
        result = await client.call_tool(order["tool"], order["arguments"], progress_callback=progress)
    except MCPError as error:
        return {"error": error.error.message, "code": error.error.code, "data": error.error.data}
    return {"text": result.content[0].text, "failed": result.is_error, "progress": told}


async def act(order):
    async with Client(order["url"], mode=order["mode"], read_timeout_seconds=30) as client:
        tools = [tool.name for tool in (await client.list_tools()).tools]
        calls = [await call(client, one) for one in order["calls"]]
        return {"version": client.protocol_version, "tools": tools, "calls": calls}


async def main():
    server = uvicorn.Server(uvicorn.Config(TOOLS.streamable_http_app(), host="127.0.0.1", port=0, log_level="warning"))
    serving = asyncio.create_task(server.serve())
    while not server.started:
        await asyncio.sleep(0.01)
    print(json.dumps(server.servers[0].sockets[0].getsockname()[1]), flush=True)
    loop = asyncio.get_running_loop()
    while line := await loop.run_in_executor(None, sys.stdin.readline):
        print(json.dumps(await act(json.loads(line))), flush=True)
    server.should_exit = True
    await serving


asyncio.run(main())
