"""The providers' side of the harnesses: as much of their interfaces as one short piece of work takes.

Called by test_internet for requests to the hosts below. Each conversation is the same: the first answer has the harness's
own tool for commands run COMMAND in its workspace, and the answer to the tool's result says that all is done. What came is
noted: the credential, the conversation, and what the tool had to say.

    Anthropic's Messages (claude, pi): POST /v1/messages, server-sent events, blocks of type tool_use
    OpenAI's Responses (codex): POST /v1/responses, server-sent events, calls of its custom tool exec; and the same over a
    WebSocket, which it asks for first (426 if a file "no-websocket" is beside the origin's folder)

The key comes back in a comment of each stream, as from a provider that is careless (not in a WebSocket, which a gateway
would end for it). While a file "hold" is beside the origin's folder, the last answer waits. Without a credential: 401.
"""
import json
import os
import struct
import time

HOSTS = ("api.anthropic.com", "api.openai.com")
COMMAND = "echo 'changed by the agent' >>file.txt && wc -l file.txt"
DONE = "The file is changed."
LIFE_S = 10  # between two signs of life of a stream whose answer waits


def event(kind, **content):
    return f"event: {kind}\ndata: {json.dumps({'type': kind, **content})}\n\n".encode()


class Messages:
    """One answer of Anthropic's, to a request with or without tools, with or without a tool's result."""

    life = event("ping")

    def __init__(self, request):
        self.request = request
        self.tools = [tool.get("name") for tool in request.get("tools", [])]
        self.result = self.find_result()
        self.asked = json.dumps(request.get("messages", []))

    def find_result(self):
        for message in self.request.get("messages", []):
            blocks = message["content"] if isinstance(message["content"], list) else []
            for block in blocks:
                if block.get("type") == "tool_result":
                    return json.dumps(block.get("content"))
        return None

    def tool(self):
        return next((name for name in self.tools if name.lower() == "bash"), None)

    def events(self):
        call = self.tool() if self.result is None else None
        usage = {"input_tokens": 10, "output_tokens": 10}
        yield event("message_start", message={
            "id": "msg_1", "type": "message", "role": "assistant", "model": self.request.get("model", ""), "content": [],
            "stop_reason": None, "stop_sequence": None, "usage": usage})
        if call:
            yield event("content_block_start", index=0,
                        content_block={"type": "tool_use", "id": "toolu_1", "name": call, "input": {}})
            text = json.dumps({"command": COMMAND, "description": "Change the file"})
            for part in (text[:20], text[20:]):
                yield event("content_block_delta", index=0, delta={"type": "input_json_delta", "partial_json": part})
        else:
            yield event("content_block_start", index=0, content_block={"type": "text", "text": ""})
            for word in DONE.split(" "):
                yield event("content_block_delta", index=0, delta={"type": "text_delta", "text": word + " "})
        yield event("content_block_stop", index=0)
        yield event("message_delta", delta={"stop_reason": "tool_use" if call else "end_turn", "stop_sequence": None},
                    usage=usage)
        yield event("message_stop")

    def document(self):
        return {"id": "msg_1", "type": "message", "role": "assistant", "model": self.request.get("model", ""),
                "content": [{"type": "text", "text": DONE}], "stop_reason": "end_turn", "stop_sequence": None,
                "usage": {"input_tokens": 10, "output_tokens": 10}}


class Responses:
    """One answer of OpenAI's."""

    life = b": keepalive\n\n"

    def __init__(self, request):
        self.request = request
        self.result = next((json.dumps(item.get("output")) for item in request.get("input", [])
                            if str(item.get("type")).endswith("_call_output")), None)
        self.asked = json.dumps(request.get("input", []))

    def events(self):
        if self.result is None:
            code = f"text(await tools.exec_command({json.dumps({'cmd': COMMAND})}));"
            item = {"type": "custom_tool_call", "id": "ctc_1", "call_id": "call_1", "name": "exec", "input": code,
                    "status": "completed"}
        else:
            item = {"type": "message", "id": "msg_1", "role": "assistant", "status": "completed",
                    "content": [{"type": "output_text", "text": DONE, "annotations": []}]}
        response = {"id": "resp_1", "object": "response", "status": "in_progress", "output": [],
                    "model": self.request.get("model", "")}
        yield event("response.created", response=response)
        yield event("response.output_item.added", output_index=0, item=item)
        yield event("response.output_item.done", output_index=0, item=item)
        yield event("response.completed", response={
            **response, "status": "completed", "output": [item],
            "usage": {"input_tokens": 10, "input_tokens_details": {"cached_tokens": 0}, "output_tokens": 10,
                      "output_tokens_details": {"reasoning_tokens": 0}, "total_tokens": 20}})


def credential(headers):
    """What the request says who pays, or nothing."""
    scheme, _, value = headers.get("Authorization", "").partition(" ")
    return value if scheme.lower() == "bearer" else headers.get("x-api-key", "")


def is_there(origin, name):
    return os.path.exists(os.path.join(origin.root, os.pardir, name))


def wait_while_held(origin, answer, show_life):
    """A harness gives up a stream in which nothing comes (Claude Code after three minutes), so providers show that they live."""
    shown = time.monotonic()
    while answer.result is not None and is_there(origin, "hold"):
        time.sleep(0.1)
        if time.monotonic() - shown > LIFE_S:
            show_life()
            shown = time.monotonic()


def note(origin, answer, key, transport):
    origin.log.write(event="model", host=origin.headers.get("Host"), credential=key, tool_result=answer.result,
                     asked=answer.asked, agent=origin.headers.get("User-Agent"), transport=transport)


def send_chunk(origin, data):
    origin.wfile.write(b"%x\r\n%s\r\n" % (len(data), data))
    origin.wfile.flush()


def send_events(origin, answer, key):
    origin.send_response(200)
    origin.send_header("Content-Type", "text/event-stream")
    origin.send_header("Transfer-Encoding", "chunked")
    origin.end_headers()
    send_chunk(origin, b": %s\n\n" % key.encode())
    wait_while_held(origin, answer, lambda: send_chunk(origin, answer.life))
    for data in answer.events():
        send_chunk(origin, data)
    origin.wfile.write(b"0\r\n\r\n")


def read_message(origin):
    """The next text of a WebSocket, whole; None at its end."""
    message = b""
    while len(head := origin.rfile.read(2)) == 2:
        length = head[1] & 127
        if length > 125:
            length, = struct.unpack("!H" if length == 126 else "!Q", origin.rfile.read(2 if length == 126 else 8))
        mask, data = origin.rfile.read(4), origin.rfile.read(length)
        data = (int.from_bytes(data, "big") ^ int.from_bytes((mask * (length // 4 + 1))[:length], "big")).to_bytes(length, "big")
        kind = head[0] & 15
        if kind == 8:
            return None
        if kind == 9:
            send_frame(origin, 10, data)
        elif kind in (0, 1):
            message += data
            if head[0] & 128:
                return message
    return None


def send_frame(origin, kind, data):
    length = len(data)
    head = bytes([128 | kind, length]) if length < 126 else bytes([128 | kind, 126]) + struct.pack("!H", length)
    origin.wfile.write(head + data)
    origin.wfile.flush()


def serve_websocket(origin, key):
    """Each message is a request, each event of its answer a message."""
    origin.accept_websocket()
    while message := read_message(origin):
        request = json.loads(message)
        if request.get("type") != "response.create":
            continue
        answer = Responses(request)
        note(origin, answer, key, "websocket")
        wait_while_held(origin, answer, lambda: send_frame(origin, 9, b""))
        for data in answer.events():
            send_frame(origin, 1, data.split(b"data: ", 1)[1].strip())


def send_error(origin, status, kind):
    data = json.dumps({"type": "error", "error": {"type": kind, "message": kind}}).encode()
    origin.send_response(status)
    origin.send_header("Content-Type", "application/json")
    origin.send_header("Content-Length", str(len(data)))
    origin.end_headers()
    if origin.command != "HEAD":
        origin.wfile.write(data)


def serve(origin, path, body):
    """Answers one request that test_internet has read."""
    key = credential(origin.headers)
    if path not in ("/v1/messages", "/v1/responses"):
        send_error(origin, 404, "not_found_error")
    elif not key:
        send_error(origin, 401, "authentication_error")
    elif origin.headers.get("Upgrade", "").lower() == "websocket" and is_there(origin, "no-websocket"):
        send_error(origin, 426, "upgrade_required")
    elif origin.headers.get("Upgrade", "").lower() == "websocket":
        serve_websocket(origin, key)
    else:
        request = json.loads(body)
        answer = (Messages if path == "/v1/messages" else Responses)(request)
        note(origin, answer, key, "stream" if request.get("stream") else "document")
        if request.get("stream"):
            send_events(origin, answer, key)
        else:
            origin.send_data(json.dumps(answer.document()).encode())
