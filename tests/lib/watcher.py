"""What is seen on a network: every frame on every interface of some network namespaces, and what listeners hear."""
import collections
import ctypes
import ipaddress
import os
import selectors
import socket
import struct
import threading

CLONE_NEWNET = 0x40000000
ETH_P_ALL = 3
SO_RCVBUFFORCE = 33
Frame = collections.namedtuple("Frame", "place interface outgoing data")


class in_network:
    """The calling thread is in the network of this path; None: in its own."""
    def __init__(self, path):
        self.path = path

    def __enter__(self):
        self.own = os.open("/proc/thread-self/ns/net", os.O_RDONLY)
        self.move(self.path)

    def __exit__(self, *_):
        self.move(f"/proc/self/fd/{self.own}")
        os.close(self.own)

    @staticmethod
    def move(path):
        if path is None:
            return
        descriptor = os.open(path, os.O_RDONLY)
        result = ctypes.CDLL(None, use_errno=True).setns(descriptor, CLONE_NEWNET)
        os.close(descriptor)
        if result != 0:
            raise OSError(ctypes.get_errno(), f"setns {path}")


class Watcher:
    """networks: {name: path, or None for this one}."""
    def __init__(self, networks):
        self.frames, self.lock = [], threading.Lock()
        for name, path in networks.items():
            with in_network(path):
                watched = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(ETH_P_ALL))
            watched.setsockopt(socket.SOL_SOCKET, SO_RCVBUFFORCE, 64 << 20)
            threading.Thread(target=self.watch, args=(name, watched), daemon=True).start()

    def watch(self, name, watched):
        while True:
            data, (interface, _, kind, *_) = watched.recvfrom(65536)
            with self.lock:
                if len(self.frames) < 1000000:
                    self.frames.append(Frame(name, interface, kind == socket.PACKET_OUTGOING, data))

    def forget(self):
        with self.lock:
            self.frames = []

    def taken(self):
        """The frames since the last forget()."""
        with self.lock:
            return list(self.frames)


class Listeners:
    """TCP and UDP on these ports of every address here; remembers whoever comes."""
    def __init__(self, ports):
        self.entries, self.selector = [], selectors.DefaultSelector()
        for port in ports:
            for kind in (socket.SOCK_STREAM, socket.SOCK_DGRAM):
                one = socket.socket(socket.AF_INET6, kind | socket.SOCK_NONBLOCK)
                one.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
                one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                one.bind(("::", port))
                if kind == socket.SOCK_STREAM:
                    one.listen(64)
                self.selector.register(one, selectors.EVENT_READ)
        threading.Thread(target=self.serve, daemon=True).start()

    def serve(self):
        while True:
            for key, _ in self.selector.select():
                one = key.fileobj
                port = one.getsockname()[1]
                if one.type == socket.SOCK_STREAM:
                    client, peer = one.accept()
                    client.close()
                    self.entries.append(("tcp", port, peer[0]))
                else:
                    data, peer = one.recvfrom(2048)
                    self.entries.append(("udp", port, peer[0], data[:60]))

    def forget(self):
        self.entries = []

    def heard(self):
        return list(self.entries)


def addresses_of(data):
    """(source, destination) of an IPv4 or ARP frame, or (None, None)."""
    kind = data[12:14]
    if kind == b"\x08\x00" and len(data) >= 34:
        return str(ipaddress.ip_address(data[26:30])), str(ipaddress.ip_address(data[30:34]))
    if kind == b"\x08\x06" and len(data) >= 42:
        return str(ipaddress.ip_address(data[28:32])), str(ipaddress.ip_address(data[38:42]))
    return None, None


def describe(frame):
    data = frame.data
    text = f"type {data[12:14].hex()} {data[6:12].hex(':')} > {data[:6].hex(':')}"
    source, destination = addresses_of(data)
    if source:
        text += f" {source} > {destination}"
    if data[12:14] == b"\x08\x00" and data[23] in (6, 17) and len(data) >= 38:
        text += " {} port {} > {}".format("tcp" if data[23] == 6 else "udp", *struct.unpack("!HH", data[34:38]))
    return f"{frame.place}, {frame.interface}: {text}"
