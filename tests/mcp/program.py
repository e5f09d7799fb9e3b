"""A real MCP server, written with the official package: over stdio, Streamable HTTP or SSE, and faulty on
request.

    python program.py stdio|http|sse [--tools N] [--endless] [--only NAME] [--until FILE] [--garbage]
        [--token TOKEN] [--certificate FILE] [--elsewhere URL]

Over HTTP it prints its port first. `--until` delays the start until the file exists.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import mcp_types as types
from mcp.server import Server
from mcp.server.sse import SseServerTransport
from mcp.server.stdio import stdio_server

PNG = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
"""An image of one pixel: the proxy checks the images that it passes on."""
PAGE = 100
STDOUT = os.dup(1)
"""The real stdout: the package redirects prints of its servers, which programs in other languages cannot do.
"""
SCHEMA = {"type": "object", "properties": {"text": {"type": "string"}}}


def text(value: str, *, is_error: bool = False) -> types.CallToolResult:
    return types.CallToolResult(content=[types.TextContent(type="text", text=value)], is_error=is_error)


def write_all(data: bytes) -> None:
    while data:
        data = data[os.write(STDOUT, data) :]


class Program:
    """The server's tools: each method `tool_NAME` gets the arguments of a call."""

    def __init__(self, extra: int, *, endless: bool, only: str | None = None) -> None:
        names = [name.removeprefix("tool_") for name in dir(self) if name.startswith("tool_")]
        names = [name for name in names if only in (None, name)]
        self.names = names + [f"extra_{number}" for number in range(extra)]
        self.endless = endless
        self.loses_session = False
        self.met = 0
        self.all_met = asyncio.Event()

    async def list_tools(
        self, ctx: Any, params: types.PaginatedRequestParams | None
    ) -> types.ListToolsResult:
        start = int(params.cursor) if params is not None and params.cursor else 0
        names = self.names[start : start + PAGE]
        tools = [
            types.Tool(
                name=name,
                description=f"Does {name}.",
                input_schema=SCHEMA,
                annotations=types.ToolAnnotations(read_only_hint=name == "echo"),
            )
            for name in names
        ]
        more = self.endless or start + PAGE < len(self.names)
        return types.ListToolsResult(tools=tools, next_cursor=str(start + PAGE) if more else None)

    async def call(self, ctx: Any, params: types.CallToolRequestParams) -> types.CallToolResult:
        tool = getattr(self, f"tool_{params.name}", None)
        if tool is None:
            raise ValueError(f"no tool {params.name} for {os.environ.get('SECRET', '')}")
        answer: types.CallToolResult = await tool(ctx, params.arguments or {})
        return answer

    async def tool_echo(self, ctx: Any, given: dict[str, Any]) -> types.CallToolResult:
        return text(given["text"])

    async def tool_get_weather(self, ctx: Any, given: dict[str, Any]) -> types.CallToolResult:
        return text(f"Sunny in {given['city']}.")

    async def tool_mixed(self, ctx: Any, given: dict[str, Any]) -> types.CallToolResult:
        return types.CallToolResult(
            content=[
                types.TextContent(type="text", text="one"),
                types.ImageContent(type="image", data=PNG, mime_type="image/png"),
                types.TextContent(type="text", text="two"),
            ],
            structured_content={"sum": 3},
        )

    async def tool_values(self, ctx: Any, given: dict[str, Any]) -> types.CallToolResult:
        return types.CallToolResult(content=[], structured_content={"x": [[1]] * int(given["size"])})

    async def tool_big(self, ctx: Any, given: dict[str, Any]) -> types.CallToolResult:
        return text("x" * int(given["size"]))

    async def tool_refuse(self, ctx: Any, given: dict[str, Any]) -> types.CallToolResult:
        return text("not today", is_error=True)

    async def tool_hang(self, ctx: Any, given: dict[str, Any]) -> types.CallToolResult:
        folder = Path(given["folder"])
        (folder / "called").touch()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            (folder / "cancelled").touch()
            raise
        return text("never")

    async def tool_die(self, ctx: Any, given: dict[str, Any]) -> types.CallToolResult:
        words = ("last words", os.environ.get("SECRET", ""), given.get("text", ""))
        print(*filter(None, words), file=sys.stderr, flush=True)
        os._exit(3)

    async def tool_pid(self, ctx: Any, given: dict[str, Any]) -> types.CallToolResult:
        return text(str(os.getpid()))

    async def tool_meet(self, ctx: Any, given: dict[str, Any]) -> types.CallToolResult:
        self.met += 1
        if self.met == int(given["count"]):
            self.all_met.set()
        await self.all_met.wait()
        return text(given["text"])

    async def tool_change(self, ctx: Any, given: dict[str, Any]) -> types.CallToolResult:
        self.names.append("new")
        await ctx.session.send_tool_list_changed()
        return text("changed")

    async def tool_flood(self, ctx: Any, given: dict[str, Any]) -> types.CallToolResult:
        line = b'{"jsonrpc":"2.0","method":"notifications/message","params":{"level":"info","data":"x"}}\n'
        write_all(line * 1000)
        return text("through")

    async def tool_noise(self, ctx: Any, given: dict[str, Any]) -> types.CallToolResult:
        os.write(STDOUT, b"not json\n{not json either}\n\n" + b"\xff" * 100_000 + b"\n")
        for _ in range(100):
            os.write(2, b"e" * 65_536)
        return text("through")

    async def tool_endless_line(self, ctx: Any, given: dict[str, Any]) -> types.CallToolResult:
        write_all(b"x" * int(given["size"]))
        await asyncio.Event().wait()
        return text("never")

    async def tool_many_values(self, ctx: Any, given: dict[str, Any]) -> types.CallToolResult:
        write_all(b'{"jsonrpc":"2.0","id":0,"result":{"x":[' + b"[1]," * int(given["size"]) + b"0]}}\n")
        await asyncio.Event().wait()
        return text("never")

    async def tool_header(self, ctx: Any, given: dict[str, Any]) -> types.CallToolResult:
        return text(ctx.request.headers.get(given["text"], "none"))

    async def tool_block(self, ctx: Any, given: dict[str, Any]) -> types.CallToolResult:
        """Blocks the whole server until the file `go` exists, as servers without concurrency do."""
        folder = Path(given["folder"])
        (folder / "called").touch()
        while not (folder / "go").exists():
            time.sleep(0.01)
        return text("done")

    async def tool_lose_session(self, ctx: Any, given: dict[str, Any]) -> types.CallToolResult:
        """Makes the server answer the next message of a session as if it had never known the session."""
        self.loses_session = True
        return text("forgotten")

    async def tool_orphan(self, ctx: Any, given: dict[str, Any]) -> types.CallToolResult:
        """Leaves a process behind in a session of its own and returns its pid."""
        orphan = subprocess.Popen(["sleep", "600"], start_new_session=True, stdout=subprocess.DEVNULL)
        return text(str(orphan.pid))


class Gateway:
    """An ASGI app in front of a server over HTTP: requires a token, redirects, answers no notification, and
    refuses a lost session.
    """

    def __init__(self, app: Any, program: Program, token: str | None, elsewhere: str) -> None:
        self.app, self.program, self.token, self.elsewhere = app, program, token, elsewhere

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "http":
            headers = dict(scope["headers"])
            path = scope["path"]
            if self.token is not None and headers.get(b"authorization") != f"Bearer {self.token}".encode():
                await answer(send, 401)
                return
            if self.program.loses_session and scope["method"] == "POST" and b"mcp-session-id" in headers:
                self.program.loses_session = False
                await answer(send, 404)
                return
            if path == "/same":
                await answer(send, 307, "/mcp")
                return
            if path == "/away":
                await answer(send, 307, self.elsewhere)
                return
            if path == "/silent":
                scope, message = scope | {"path": "/mcp"}, await receive()
                if b'"notifications/' in message.get("body", b""):
                    await receive()  # returns when the client has closed the connection
                    return
                messages = [message]

                async def replay() -> Any:
                    return messages.pop() if messages else await receive()

                await self.app(scope, replay, send)
                return
        await self.app(scope, receive, send)


async def answer(send: Any, status: int, location: str = "") -> None:
    await send(
        {"type": "http.response.start", "status": status, "headers": [(b"location", location.encode())]}
    )
    await send({"type": "http.response.body", "body": b""})


async def over_stdio(server: Server[Any]) -> None:
    async with stdio_server() as (read, write):
        await server.run(read, write, server.create_initialization_options())


def sse_app(server: Server[Any]) -> Any:
    transport = SseServerTransport("/messages/")

    async def app(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            return
        if scope["path"] == "/messages/":
            await transport.handle_post_message(scope, receive, send)
        elif scope["method"] == "GET":
            async with transport.connect_sse(scope, receive, send) as (read, write):
                await server.run(read, write, server.create_initialization_options())
        else:
            await answer(send, 405)

    return app


def over_http(app: Any, certificate: str | None) -> None:
    import uvicorn

    listening = socket.create_server(("127.0.0.1", 0))
    print(listening.getsockname()[1], flush=True)
    uvicorn.Server(
        uvicorn.Config(app, log_level="critical", timeout_graceful_shutdown=1, ssl_certfile=certificate)
    ).run(sockets=[listening])


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("transport")
    parser.add_argument("--tools", type=int, default=0)
    parser.add_argument("--endless", action="store_true")
    parser.add_argument("--only")
    parser.add_argument("--until")
    parser.add_argument("--garbage", action="store_true")
    parser.add_argument("--token")
    parser.add_argument("--certificate")
    parser.add_argument("--elsewhere", default="")
    args = parser.parse_args()
    program = Program(args.tools, endless=args.endless, only=args.only)
    server: Server[Any] = Server("tests", on_list_tools=program.list_tools, on_call_tool=program.call)
    if args.garbage:
        print("Starting up ...\n{}\n[1, 2]", flush=True)
    while args.until is not None and not os.path.exists(args.until):
        time.sleep(0.01)
    if args.transport == "stdio":
        asyncio.run(over_stdio(server))
        return
    app = sse_app(server) if args.transport == "sse" else server.streamable_http_app()
    over_http(Gateway(app, program, args.token, args.elsewhere), args.certificate)


if __name__ == "__main__":
    main()
