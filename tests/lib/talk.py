#!/usr/bin/env python3
"""Two ends of a connection whose pauses tests measure.

talk.py serve          answers on the gateway's port with what it gets
talk.py talk ADDRESS   one connection, a line every 20 ms; prints the time of each answer and the milliseconds since the
                       one before. Ends when the connection does.
"""
import socket
import sys
import threading
import time

PORT = 8119


def echo(peer):
    try:
        while data := peer.recv(4096):
            peer.sendall(data)
    except OSError:
        pass  # the other side is gone


def serve():
    server = socket.create_server(("0.0.0.0", PORT))
    while True:
        threading.Thread(target=echo, args=(server.accept()[0],), daemon=True).start()


def connect(address):
    """The other side may still be on its way up."""
    for _ in range(250):
        try:
            return socket.create_connection((address, PORT), timeout=30)
        except ConnectionRefusedError:
            time.sleep(0.02)
    sys.exit("nobody answers")


def talk(address):
    peer = connect(address)
    last = time.monotonic()
    while True:
        peer.sendall(b"x\n")
        if not peer.recv(16):
            sys.exit("closed")
        now = time.monotonic()
        print(f"{time.time():.3f} {1000 * (now - last):.0f}", flush=True)
        last = now
        time.sleep(0.02)


if __name__ == "__main__":
    serve() if sys.argv[1] == "serve" else talk(sys.argv[2])
