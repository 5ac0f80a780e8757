"""An upstream of a model gateway that sends exactly the bytes a test tells it, and answers in every dialect."""

import asyncio
import json
from dataclasses import dataclass, field

KEY = "sk-canary-0123456789abcdef"


def answer(body, status=200, *, kind="application/json", **headers):
    """A whole HTTP response."""
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    lines = [f"HTTP/1.1 {status} X", f"content-type: {kind}", f"content-length: {len(data)}"]
    lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
    return ("\r\n".join(lines) + "\r\n\r\n").encode() + data


class Stream(list):
    """Pieces of a stream, each sent on its own; `whole` ends it as HTTP demands."""

    def __init__(self, pieces, *, whole=True, hang=False):
        super().__init__(pieces)
        self.whole, self.hang = whole, hang


@dataclass
class Asked:
    """A request as the upstream saw it."""

    method: str
    target: str
    headers: dict
    body: bytes

    @property
    def json(self):
        return json.loads(self.body)


@dataclass
class Upstream:
    """Answers requests in order; the last answer is given again and again."""

    answers: list
    asked: list = field(default_factory=list)
    left: asyncio.Event = field(default_factory=asyncio.Event)
    url: str = ""

    async def serve(self, reader, writer):
        try:
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
                method, target, _ = head[0].split(" ")
                headers = dict(line.lower().split(": ", 1) for line in head[1:] if line)
                headers |= {line.split(": ", 1)[0].lower(): line.split(": ", 1)[1] for line in head[1:] if line}
                body = await reader.readexactly(int(headers.get("content-length", 0)))
                self.asked.append(Asked(method, target, headers, body))
                reply = self.answers[min(len(self.asked), len(self.answers)) - 1]
                if not await self.reply(reply, reader, writer):
                    break
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    async def reply(self, reply, reader, writer):
        if reply is None:
            return False
        if not isinstance(reply, Stream):
            writer.write(reply)
            await writer.drain()
            return True
        writer.write(b"HTTP/1.1 200 X\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n")
        for piece in reply:
            writer.write(b"%x\r\n%s\r\n" % (len(piece), piece))
            await writer.drain()
            await asyncio.sleep(0.005)
        if reply.hang:
            await reader.read(1)  # until the other side leaves
            self.left.set()
            return False
        if reply.whole:
            writer.write(b"0\r\n\r\n")
            await writer.drain()
        return reply.whole


OPENAI = {
    "id": "c",
    "model": "gpt-4o-2024-08-06",
    "choices": [{"index": 0, "message": {"role": "assistant", "content": "hello"}, "finish_reason": "stop"}],
    "usage": {"prompt_tokens": 10, "completion_tokens": 5, "prompt_tokens_details": {"cached_tokens": 4}},
}
CHAT_STREAM = [
    b'data: {"choices":[{"index":0,"delta":{"content":"hel"},"finish_reason":null}]}\n\n',
    b'data: {"choices":[{"index":0,"delta":{"content":"lo"},"finish_reason":"stop"}]}\n\n',
    b'data: {"choices":[],"usage":{"prompt_tokens":10,"completion_tokens":5}}\n\ndata: [DONE]\n\n',
]
RESPONSES_STREAM = [
    b'event: response.created\ndata: {"type":"response.created","response":{"status":"in_progress"}}\n\n',
    b'event: response.output_text.delta\ndata: {"type":"response.output_text.delta","delta":"hello"}\n\n',
    (
        b'event: response.completed\ndata: {"type":"response.completed","response":{"status":"completed",'
        b'"usage":{"input_tokens":10,"output_tokens":5,"input_tokens_details":{"cached_tokens":4}}}}\n\n'
    ),
]
MESSAGES_STREAM = [
    (
        b'event: message_start\ndata: {"type":"message_start","message":{"model":"claude","usage":{"input_tokens":6,'
        b'"cache_read_input_tokens":4,"output_tokens":1}}}\n\n'
    ),
    b'event: content_block_delta\ndata: {"type":"content_block_delta","delta":{"type":"text_delta","text":"hi"}}\n\n',
    (
        b'event: message_delta\ndata: {"type":"message_delta","delta":{"stop_reason":"end_turn"},'
        b'"usage":{"output_tokens":5}}\n\nevent: message_stop\ndata: {"type":"message_stop"}\n\n'
    ),
]
GEMINI_STREAM = [
    b'data: {"candidates":[{"content":{"parts":[{"text":"hel"}]}}],"usageMetadata":{"promptTokenCount":10}}\r\n\r\n',
    (
        b'data: {"candidates":[{"content":{"parts":[{"text":"lo"}]},"finishReason":"STOP"}],"usageMetadata":'
        b'{"promptTokenCount":10,"candidatesTokenCount":3,"thoughtsTokenCount":2,"cachedContentTokenCount":4}}\r\n\r\n'
    ),
]
