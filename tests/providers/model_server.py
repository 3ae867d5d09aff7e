"""A server that speaks two protocols of language models over a real socket and does what a test tells it to do.

What a call gets is a `Play`; what was heard is kept with its headers, so that a test can add it up. It runs in a thread
with a loop of its own, so that a caller's loop may come and go.
"""

import asyncio
import contextlib
import json
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum, auto
from types import TracebackType
from typing import Any

OPENAI_MODEL = "fake-model-2026-11-01"
ANTHROPIC_MODEL = "fake-claude-2026-11-01"


class Cut(Enum):
    """Ways in which a connection ends before its answer is whole."""

    RESET = auto()
    CLOSED = auto()
    MIDWAY = auto()
    #: Twenty bytes now and then, for ever.
    DRIBBLE = auto()
    #: Not a byte.
    SILENCE = auto()


@dataclass(frozen=True, kw_only=True)
class Error:
    status: int
    kind: str = "error"
    message: str = "no"
    headers: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Completion:
    text: str | None
    finish: str = "stop"
    refusal: str | None = None
    tokens_in: int = 111
    tokens_out: int = 22
    cached: int = 10
    model: str | None = None
    headers: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Raw:
    body: bytes
    content_type: str = "application/json"
    status: int = 200


Play = Error | Completion | Raw | Cut


@dataclass(kw_only=True)
class Heard:
    """One request and what became of it; `closed` is set when the caller has gone before the answer was whole."""

    number: int
    path: str
    headers: dict[str, str]
    body: dict[str, Any]
    play: Play | None = None
    closed: threading.Event = field(default_factory=threading.Event)
    began: threading.Event = field(default_factory=threading.Event)

    @property
    def operation_key(self) -> str:
        """The work item's key, which a repair's key begins with."""
        return self.headers.get("idempotency-key", "").removesuffix("/repair")

    @property
    def is_anthropic(self) -> bool:
        return self.path.endswith("/messages")

    @property
    def user(self) -> str:
        """The user's message, as text."""
        content = self.body["messages"][-1]["content"]
        return content if isinstance(content, str) else "".join(part["text"] for part in content)

    @property
    def system(self) -> str:
        if self.is_anthropic:
            told = self.body.get("system", "")
            return told if isinstance(told, str) else "".join(part["text"] for part in told)
        return "".join(
            str(each["content"]) for each in self.body["messages"] if each["role"] in {"system", "developer"}
        )


class ModelServer:
    """See the module's docstring; use it as a context manager."""

    def __init__(self, plays: Callable[[Heard], Play]) -> None:
        self.heard: list[Heard] = []
        self._plays = plays
        self._loop = asyncio.new_event_loop()
        self._port = 0
        self._ready = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._port}/v1"

    @property
    def anthropic_url(self) -> str:
        return f"http://127.0.0.1:{self._port}"

    def __enter__(self) -> "ModelServer":
        self._thread.start()
        assert self._ready.wait(10)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(10)

    def _run(self) -> None:
        with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
            runner.run(self._serve())

    async def _serve(self) -> None:
        self._stop = asyncio.Event()
        server = await asyncio.start_server(self._connected, "127.0.0.1", 0)
        self._port = server.sockets[0].getsockname()[1]
        self._ready.set()
        await self._stop.wait()
        server.close()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        try:
            with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
                await self._answer(reader, writer)
        finally:
            self._tasks.discard(task)
            writer.close()
            with contextlib.suppress(ConnectionError, asyncio.CancelledError):
                await writer.wait_closed()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        line = (await reader.readline()).decode()
        if not line.strip():
            return
        headers: dict[str, str] = {}
        while (header := (await reader.readline()).decode().strip()) != "":
            name, _, value = header.partition(":")
            headers[name.lower()] = value.strip()
        body = await reader.readexactly(int(headers.get("content-length", 0)))
        heard = Heard(number=len(self.heard) + 1, path=line.split()[1], headers=headers, body=json.loads(body or b"{}"))
        self.heard.append(heard)
        heard.play = play = self._plays(heard)
        heard.began.set()
        match play:
            case Cut():
                await self._cut(play, heard, reader, writer)
            case Raw():
                await _send(writer, play.status, play.body, {"content-type": play.content_type}, heard)
            case Error():
                await _send(writer, play.status, json.dumps(_error(play, heard)).encode(), play.headers, heard)
            case Completion():
                await _send(writer, 200, json.dumps(_completion(play, heard)).encode(), play.headers, heard)

    async def _cut(self, cut: Cut, heard: Heard, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 100000\r\n\r\n"
        gone = asyncio.ensure_future(reader.read(1))
        try:
            match cut:
                case Cut.RESET:
                    writer.transport.abort()
                case Cut.CLOSED:
                    pass
                case Cut.MIDWAY:
                    writer.write(head + b'{"id": "chatcmpl-1", "choices": [')
                    await writer.drain()
                case Cut.DRIBBLE:
                    writer.write(head)
                    while not gone.done():
                        writer.write(b" " * 20)
                        await writer.drain()
                        await asyncio.wait([gone], timeout=0.02)
                    heard.closed.set()
                case Cut.SILENCE:
                    await gone
                    heard.closed.set()
        except ConnectionError:
            heard.closed.set()
        finally:
            gone.cancel()


async def _send(
    writer: asyncio.StreamWriter, status: int, body: bytes, headers: Mapping[str, str], heard: Heard
) -> None:
    told = {
        "content-type": "application/json",
        "x-request-id": f"req_{heard.number}",
        "connection": "close",
        **headers,
        "content-length": str(len(body)),
    }
    lines = "".join(f"{name}: {value}\r\n" for name, value in told.items())
    writer.write(f"HTTP/1.1 {status} X\r\n{lines}\r\n".encode() + body)
    await writer.drain()


def _error(play: Error, heard: Heard) -> dict[str, Any]:
    if heard.is_anthropic:
        return {"type": "error", "error": {"type": play.kind, "message": play.message}}
    return {"error": {"message": play.message, "type": play.kind, "param": None, "code": play.kind}}


def _completion(play: Completion, heard: Heard) -> dict[str, Any]:
    if heard.is_anthropic:
        stop = {"stop": "end_turn", "length": "max_tokens", "content_filter": "refusal"}[play.finish]
        return {
            "id": f"msg_{heard.number}",
            "type": "message",
            "role": "assistant",
            "model": play.model or ANTHROPIC_MODEL,
            "content": [{"type": "text", "text": play.text or ""}],
            "stop_reason": stop,
            "stop_sequence": None,
            "usage": {
                "input_tokens": play.tokens_in - play.cached,
                "output_tokens": play.tokens_out,
                "cache_read_input_tokens": play.cached,
                "cache_creation_input_tokens": 0,
            },
        }
    message = {"role": "assistant", "content": play.text, "refusal": play.refusal}
    return {
        "id": f"chatcmpl-{heard.number}",
        "object": "chat.completion",
        "created": 1,
        "model": play.model or OPENAI_MODEL,
        "choices": [{"index": 0, "message": message, "finish_reason": play.finish, "logprobs": None}],
        "usage": {
            "prompt_tokens": play.tokens_in,
            "completion_tokens": play.tokens_out,
            "total_tokens": play.tokens_in + play.tokens_out,
            "prompt_tokens_details": {"cached_tokens": play.cached},
        },
    }
