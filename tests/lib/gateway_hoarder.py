#!/usr/bin/env python3
"""Agents that make the gateway keep as much as they can, and the hosts that help them.

    gateway_hoarder.py host ADDRESS ORIGIN.PEM      80 and 443: a GET is answered without end (/open: slowly, without a length;
                                                    /unframed: without a length), a body is never read
    gateway_hoarder.py slow|unframed|deaf|heads|decoders|streams|idle GATEWAY HOST CONNECTIONS AUTHORITY.PEM

slow: asks and does not read; unframed: the same, for an answer that only the end of its connection ends; deaf: sends bodies
that nobody reads; heads: most of a head as large as there may be; decoders: bodies that want the largest window; streams: a
hundred requests in each HTTP/2 connection, none of whose answers is read; idle: connects. What is cut or refused comes again,
until there is something on standard input. Then one line:
{"held": the most connections at once, "refused": how many were, in words, "reset": cut, "closed": in order, without an
answer, "ended": in order, behind a good answer, as if that were all of it}.
"""
import json
import select
import socket
import ssl
import sys
import threading
import time

ENDS = select.POLLHUP | select.POLLERR | select.POLLRDHUP
# A zstd frame with a window of 8 MiB (RFC 8878, 3.1.1) and its first block, of 60000 raw bytes.
ZSTD = b"\x28\xb5\x2f\xfd\x00\x68" + (60000 << 3).to_bytes(3, "little") + bytes(60000)


def wait_for_end(stream):
    poll = select.poll()
    poll.register(stream, ENDS & ~select.POLLRDHUP)
    poll.poll()


def serve(stream, context):
    try:
        if context:
            stream = context.wrap_socket(stream, server_side=True)
        head = b""
        while b"\r\n\r\n" not in head:
            part = stream.recv(4096)
            if not part:
                return
            head += part
        if head.startswith(b"POST"):
            wait_for_end(stream)
            return
        if head.startswith(b"GET /unframed "):
            stream.sendall(b"HTTP/1.1 200 OK\r\n\r\n")
            while True:
                stream.sendall(bytes(65536))
        if head.startswith(b"GET /open "):
            stream.sendall(b"HTTP/1.1 200 OK\r\n\r\n")
            while True:
                stream.sendall(b"a part\n")
                time.sleep(0.05)
        stream.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 1000000000000\r\n\r\n")
        while True:
            stream.sendall(bytes(65536))
    except OSError:
        pass
    finally:
        stream.close()


def accept(listener, context):
    while True:
        stream, _ = listener.accept()
        threading.Thread(target=serve, args=(stream, context), daemon=True).start()


def host(address, pem):
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(pem)
    threading.stack_size(256 * 1024)
    for port, own in ((80, None), (443, context)):
        listener = socket.create_server((address, port), backlog=1024)
        threading.Thread(target=accept, args=(listener, own), daemon=True).start()
    print("ready", flush=True)
    threading.Event().wait()


def frame(kind, flags, stream, payload):
    return len(payload).to_bytes(3, "big") + bytes((kind, flags)) + stream.to_bytes(4, "big") + payload


def literal(name, value):
    return bytes((0, len(name))) + name + bytes((len(value),)) + value


def http2_requests(name):
    fields = (b":method", b"GET"), (b":scheme", b"https"), (b":authority", name), (b":path", b"/")
    head = b"".join(literal(*field) for field in fields)
    return (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + frame(4, 0, 0, b"") +
            b"".join(frame(1, 5, number, head) for number in range(1, 200, 2)))


def end_of(stream):
    """How a connection came to its end, which is here or about to come."""
    first = b""
    try:
        while part := stream.recv(65536):
            first = first or part
    except BlockingIOError:
        return "reset"  # this side could not send
    except OSError as error:
        return "refused" if getattr(error, "reason", "") == "TLSV1_ALERT_ACCESS_DENIED" else "reset"
    finally:
        stream.close()
    if not first.startswith(b"HTTP/1.1 "):  # of HTTP/2, an end is none of its requests'
        return "closed"
    return "ended" if first.startswith(b"HTTP/1.1 200 ") else "refused"


class Hoarder:
    def __init__(self, mode, gateway, name, authority):
        self.mode, self.gateway, self.name = mode, gateway, name.encode()
        self.context = ssl.create_default_context(cafile=authority)
        self.context.set_alpn_protocols(["h2"])
        head = b" / HTTP/1.1\r\nHost: " + self.name + b"\r\n"
        body = b"Content-Length: 100000000\r\n"
        self.bytes = {"slow": b"GET" + head + b"\r\n", "streams": http2_requests(self.name), "idle": b"",
                      "unframed": b"GET /unframed HTTP/1.0\r\nHost: " + self.name + b"\r\n\r\n",
                      "heads": b"GET" + head + b"X: " + b"x" * 60000,
                      "deaf": b"POST" + head + body + b"\r\n" + bytes(400000),
                      "decoders": b"POST" + head + body + b"Content-Encoding: zstd\r\n\r\n" + ZSTD}[mode]

    def open(self):
        """A connection, and what is left to be sent on it."""
        try:
            stream = socket.create_connection((self.gateway, 443 if self.mode == "streams" else 80), 10)
            stream.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            if self.mode == "streams":
                stream = self.context.wrap_socket(stream, server_hostname=self.name.decode())
                stream.sendall(self.bytes)
                stream.setblocking(False)
                return stream, b""
            stream.setblocking(False)
            return stream, self.bytes
        except OSError:
            return None, b""

    def run(self, count):
        poll, open_ones, most, ends = select.poll(), {}, 0, dict.fromkeys(("refused", "reset", "closed", "ended"), 0)
        poll.register(sys.stdin, select.POLLIN | select.POLLHUP)
        while True:
            if len(open_ones) < count:
                stream, left = self.open()
                if stream:
                    open_ones[stream.fileno()] = [stream, left]
                    poll.register(stream, ENDS | (select.POLLOUT if left else 0))
                else:
                    time.sleep(0.05)
            most = max(most, len(open_ones))
            for number, event in poll.poll(0 if len(open_ones) < count else 200):
                if number == 0:
                    print(json.dumps({"held": most, **ends}), flush=True)
                    return
                if event & ENDS or not self.send(open_ones[number], poll):
                    poll.unregister(number)
                    ends[end_of(open_ones.pop(number)[0])] += 1
                    time.sleep(0.005)

    @staticmethod
    def send(entry, poll):
        stream, left = entry
        try:
            entry[1] = left[stream.send(left):]
        except BlockingIOError:
            pass
        except OSError:
            return False
        if not entry[1]:
            poll.modify(stream, ENDS)
        return True


def main():
    if sys.argv[1] == "host":
        host(*sys.argv[2:4])
    mode, gateway, name, count, authority = sys.argv[1:6]
    Hoarder(mode, gateway, name, authority).run(int(count))


main()
