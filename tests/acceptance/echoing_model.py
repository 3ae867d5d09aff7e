"""An endpoint that repeats whatever it was sent, key and prompt, in answers and errors: the worst that one can do."""

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


@contextmanager
def echoing_model() -> Iterator[tuple[str, list[str]]]:
    """Serve until the block ends; the value is the base URL of an OpenAI-compatible endpoint, and what it repeated."""
    quoted: list[str] = []
    server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(quoted))
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/v1", quoted
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def _handler(quoted: list[str]) -> type[BaseHTTPRequestHandler]:
    counting = threading.Lock()

    class Handler(BaseHTTPRequestHandler):
        """Takes turns: a rejection, a fault, a draft that is none, and prose; each quotes the request."""

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"])).decode()
            text = f"{self.headers['Authorization']} {body}"
            with counting:
                turn = len(quoted) % 4
                quoted.append(text)
            if turn == 0:
                self._answer(400, {"error": {"message": text, "type": "invalid_request_error", "code": text[:80]}})
            elif turn == 1:
                self._answer(503, {"error": {"message": text}})
            elif turn == 2:
                draft = json.dumps({"rules": [{"quote": text, "condition": text}]})
                self._answer(200, _completion(draft, name=text[:100]))
            else:
                self._answer(200, _completion(text, name=str(self.headers["Authorization"]).removeprefix("Bearer ")))

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002 (the base class's name)
            """Say nothing: the test looks at what others write."""

        def _answer(self, status: int, content: dict[str, Any]) -> None:
            data = json.dumps(content).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

    return Handler


def _completion(text: str, *, name: str) -> dict[str, Any]:
    return {
        "id": name,
        "object": "chat.completion",
        "created": 1,
        "model": name,
        "choices": [{"index": 0, "message": {"role": "assistant", "content": text}, "finish_reason": "stop"}],
        "usage": {"prompt_tokens": 100, "completion_tokens": 10, "total_tokens": 110},
    }
