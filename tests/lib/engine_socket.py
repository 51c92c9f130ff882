"""A socket that stands between berth and its container engine, and passes connections on.

    engine_socket.py SOCKET ENGINE ORDER PID-FILE

ENGINE is the socket of the engine, whose process PID-FILE names. ORDER is a file that may come and go; a request with that
METHOD, and PATH somewhere in its own, is treated as the first line says:

    kill METHOD PATH engine|caller    kills the engine, or who asks, before it gets there; once: the file goes
    answer METHOD PATH STATUS         does not pass it on but answers so, with the rest of the file as the body; each time
"""
import os
import signal
import socket
import struct
import sys
import threading

ours, theirs, order_path, pid_path = sys.argv[1:]


def read_order():
    """(words of the first line, the rest); no words when there is no order"""
    try:
        with open(order_path, encoding="utf-8") as file:
            first, _, rest = file.read().partition("\n")
    except FileNotFoundError:
        return [], ""
    return first.split(), rest


def kill(client, who):
    os.unlink(order_path)
    caller = struct.unpack("iII", client.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))[0]
    with open(pid_path, encoding="utf-8") as file:
        os.kill(caller if who == "caller" else int(file.read()), signal.SIGKILL)


def answer(client, status, text):
    body = text.encode()
    client.sendall(f"HTTP/1.1 {status} As told\r\nContent-Type: application/json\r\nConnection: close\r\n"
                   f"Content-Length: {len(body)}\r\n\r\n".encode() + body)
    client.shutdown(socket.SHUT_WR)
    while client.recv(65536):
        pass


def pump(source, target):
    try:
        while data := source.recv(65536):
            target.sendall(data)
    except OSError:
        pass
    for end, how in ((target, socket.SHUT_WR), (source, socket.SHUT_RD)):
        try:
            end.shutdown(how)
        except OSError:
            pass


def pass_on(client, data):
    with socket.socket(socket.AF_UNIX) as engine:
        engine.connect(theirs)
        engine.sendall(data)
        back = threading.Thread(target=pump, args=(engine, client))
        back.start()
        pump(client, engine)
        back.join()


def serve(client):
    with client:
        try:
            data = client.recv(65536)
            method, path = data.decode(errors="replace").split(" ")[:2]
            order, body = read_order()
            if not order or method != order[1] or order[2] not in path:
                pass_on(client, data)
            elif order[0] == "answer":
                answer(client, order[3], body)
            else:
                kill(client, order[3])
                pass_on(client, data)
        except (OSError, ValueError):
            pass


listener = socket.socket(socket.AF_UNIX)
listener.bind(ours)
os.chmod(ours, 0o666)
listener.listen(64)
while True:
    threading.Thread(target=serve, args=(listener.accept()[0],), daemon=True).start()
