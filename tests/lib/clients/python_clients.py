#!/usr/bin/python3
"""python_clients.py CLIENT URL: Python's own and its usual clients."""
import asyncio
import ssl
import sys
import urllib.request


def urllib_client(url):
    return urllib.request.urlopen(url, timeout=60).read().decode()


def urllib_strict(url):
    """The checks that Python 3.13 has switched on: the extensions of every certificate are as RFC 5280 wants them."""
    context = ssl.create_default_context()
    context.verify_flags |= ssl.VERIFY_X509_STRICT | ssl.VERIFY_X509_PARTIAL_CHAIN
    return urllib.request.urlopen(url, timeout=60, context=context).read().decode()


def requests_client(url):
    import requests
    answer = requests.get(url, timeout=60)
    answer.raise_for_status()
    return answer.text


def requests_events(url):
    import requests
    with requests.get(url, stream=True, timeout=900) as answer:
        return " ".join(line.decode().removeprefix("data: ") for line in answer.iter_lines() if line)


def websockets_client(url):
    import websockets

    async def talk():
        async with websockets.connect(url) as socket:
            await socket.send("hello")
            return await socket.recv()

    return asyncio.run(talk())


def grpc_client(target):
    import grpc
    said = []
    with grpc.secure_channel(target, grpc.ssl_channel_credentials()) as channel:
        unary = channel.unary_unary("/test.Echo/Unary")
        answer, call = unary.with_call(b"hello", timeout=60, metadata=(("x-agent", "one"),))
        said += [answer.decode(), dict(call.trailing_metadata())["x-agent"]]
        try:
            unary(b"fail", timeout=60)
        except grpc.RpcError as error:
            said += [error.code().name, dict(error.trailing_metadata())["x-why"]]
        stream = channel.stream_stream("/test.Echo/Stream")(iter([b"a%d" % i for i in range(100)]), timeout=60)
        said.append(str(sum(1 for _ in stream)))
    return " ".join(said)


CLIENTS = {
    "urllib": urllib_client, "urllib-strict": urllib_strict, "requests": requests_client,
    "requests-events": requests_events, "websockets": websockets_client, "grpc": grpc_client,
}

print(CLIENTS[sys.argv[1]](sys.argv[2]).strip())
