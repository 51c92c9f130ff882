#!/usr/bin/env -S python3 -B
"""a31, a37: shapes of packets, and a gateway that ends with many flows. Source routes, fragments, ICMP errors about other people's
connections, tunnels, TCP out of nowhere and offload headers, written straight into the TAP of an agent and of a gateway, as a
hostile VMM would.

What counts is what arrived: at the bystander's guests, at the internet's side of the uplink, and behind the host's firewall
(raw sockets see a packet only after the input hook).
"""

import os
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "lib"))
from helper_attack import *  # pylint: disable=wildcard-import,unused-wildcard-import,wrong-import-position

METADATA, BRIDGE = "169.254.169.254", "10.242.0.2"
ICMP, IPIP, TCP, UDP, SIX, GRE, ESP, SCTP = 1, 4, 6, 17, 41, 47, 50, 132
LOOSE, STRICT, RECORD, TIMESTAMP = 131, 137, 7, 68

world = World.enter(__file__)


def follow_source_routes():
    """The host would do what a hostile packet asks of it."""
    for name in ("accept_source_route", "accept_redirects"):
        with open(f"/proc/sys/net/ipv4/conf/all/{name}", "w", encoding="ascii") as file:
            file.write("1")


class Eyes:
    """Everything that arrives at interfaces of others, and what the host's firewall let in."""

    def __init__(self, **interfaces):
        self.sockets = {}
        for network, interface in interfaces.items():
            with in_network(network):
                wire = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(3))
                wire.bind((interface, 0))
            self.sockets[f"{interface} of {network}"] = wire
        for protocol in (ICMP, IPIP, TCP, UDP, SIX, GRE, ESP, SCTP):
            self.sockets[f"the host's input, protocol {protocol}"] = socket.socket(socket.AF_INET, socket.SOCK_RAW, protocol)
        for one in self.sockets.values():
            one.setblocking(False)

    def saw(self, word):
        seen = []
        for name, one in self.sockets.items():
            try:
                while True:
                    if word in one.recv(65536):
                        seen.append(name)
            except BlockingIOError:
                pass
        return seen

    def close(self):
        for one in self.sockets.values():
            one.close()


class Attacker(Client):
    def __init__(self, **wish):
        super().__init__(ALICE)
        self.facts = self.lease(**wish)
        self.address, self.host = self.facts["guest"], self.facts["host"]

    def write(self, packet, header=b"\0" * 10):
        try:
            os.write(self.tap, header + ethernet(self.facts["host_mac"], self.facts["guest_mac"], 0x800, packet))
        except OSError:
            pass  # the kernel refuses some offload headers itself


def packet(source, destination, protocol, payload, options=b"", fragment=0, identity=0):
    options += b"\0" * (-len(options) % 4)
    head = struct.pack(">BBHHHBBHII", 0x45 + len(options) // 4, 0, 20 + len(options) + len(payload), identity, fragment, 64,
                       protocol, 0, source, destination) + options
    return head[:10] + struct.pack(">H", checksum(head)) + head[12:] + payload


def datagram(word, port=53, source_port=4000):
    return struct.pack(">HHHH", source_port, port, 8 + len(word), 0) + word


def route_option(kind, *hops):
    return bytes([kind, 3 + 4 * len(hops), 4]) + b"".join(struct.pack(">I", hop) for hop in hops)


def segment(source, destination, source_port, port, flags, word):
    head = struct.pack(">HHIIBBHHH", source_port, port, 1000, 2000, 0x50, flags, 1000, 0, 0)
    pseudo = struct.pack(">IIBBH", source, destination, 0, TCP, len(head) + len(word))
    return head[:16] + struct.pack(">H", checksum(pseudo + head + word)) + head[18:] + word


def error_about(inner, kind=3, code=1):
    head = struct.pack(">BBHI", kind, code, 0, 0)
    return head[:2] + struct.pack(">H", checksum(head + inner)) + head[4:] + inner


def targets():
    return {"the bystander's agent": address(bystander.agent.address), "the bystander's gateway": address(bystander.gateway.address),
            "the bystander's host end": address(bystander.agent.host), "the metadata service": address(METADATA),
            "a bridge slot": address(BRIDGE), "loopback": address("127.0.0.1")}


def expect_nothing(attacker, eyes, packets):
    for name, build in packets:
        word = os.urandom(8)
        for one in build(word):
            attacker.write(*one if isinstance(one, tuple) else (one,))
        time.sleep(0.02)
        expect([], eyes.saw(word), name)


def source_routes(attacker, forbidden):
    """To whom the host is a hop: its own addresses, with the next one in an option."""
    for hop_name, hop in forbidden.items():
        for via_name, via in (("its host end", attacker.host), ("the host's uplink", address(HOST)),
                              ("the internet", address(INTERNET))):
            for kind in (LOOSE, STRICT):
                yield (f"source route {kind} by {via_name} to {hop_name}", lambda word, hop=hop, via=via, kind=kind: [
                    packet(attacker.address, via, UDP, datagram(word), route_option(kind, hop))])


def fragments(attacker, forbidden):
    for name, target in forbidden.items():
        yield (f"fragments to {name}", lambda word, target=target: [
            packet(attacker.address, target, UDP, datagram(word + word)[:8], fragment=0x2000, identity=7),
            packet(attacker.address, target, UDP, (word + word), fragment=1, identity=7)])
        yield (f"a fragment without a first one to {name}", lambda word, target=target: [
            packet(attacker.address, target, UDP, word + word, fragment=100, identity=8)])


def other_protocols(attacker, forbidden):
    for name, target in forbidden.items():
        for protocol in (IPIP, SIX, GRE, ESP, SCTP, 255):
            yield (f"protocol {protocol} to {name}", lambda word, target=target, protocol=protocol: [
                packet(attacker.address, target, protocol, packet(attacker.address, address(INTERNET), UDP, datagram(word)))])
        for flags, what in ((0x02, "SYN"), (0x10, "ACK"), (0x12, "SYN and ACK"), (0x04, "RST"), (0x01, "FIN"), (0, "no flag"),
                            (0xff, "all flags")):
            for port in (22, 7400, 8119):
                yield (f"TCP with {what} to port {port} of {name}", lambda word, target=target, flags=flags, port=port: [
                    packet(attacker.address, target, TCP, segment(attacker.address, target, 8119, port, flags, word))])


def errors_about_others(attacker, forbidden):
    """ICMP errors that quote the bystander's connections: RELATED, for conntrack."""
    agent, gateway_ = address(bystander.agent.address), address(bystander.gateway.address)
    host_end, port = address(bystander.agent.host), bystander.old[0].getsockname()[1]
    quoted = {"agent to gateway": (agent, host_end, port, 8119), "gateway to agent": (host_end, agent, 8119, port),
              "translated": (agent, gateway_, port, 8119), "translated, back": (gateway_, agent, 8119, port),
              "the host's to the agent": (host_end, agent, host_connection[1], 2222),
              "the agent's to the host": (agent, host_end, 2222, host_connection[1])}
    for name, target in (forbidden | {"its host end": attacker.host, "the internet": address(INTERNET)}).items():
        for what, (source, destination, from_port, to_port) in quoted.items():
            for kind, code in ((3, 1), (3, 4), (5, 1), (11, 0)):
                yield (f"ICMP {kind}/{code} about {what} to {name}",
                       lambda word, target=target, source=source, destination=destination, ports=(from_port, to_port),
                       kind=kind, code=code: [packet(attacker.address, target, ICMP, error_about(
                           packet(source, destination, TCP, struct.pack(">HHII", *ports, 1, 1) + word), kind, code))])


def offloads(attacker, forbidden):
    """virtio_net_hdr: checksums to fill in and segments to cut, also where there are none."""
    headers = {"a checksum": struct.pack("<BBHHHH", 1, 0, 0, 0, 34, 6), "a checksum far away": struct.pack("<BBHHHH", 1, 0, 0, 0, 9000, 6),
               "TCP segments": struct.pack("<BBHHHH", 1, 1, 54, 8, 34, 16), "UDP fragments": struct.pack("<BBHHHH", 1, 3, 42, 8, 34, 6),
               "UDP segments": struct.pack("<BBHHHH", 1, 5, 42, 8, 34, 6), "segments of 0": struct.pack("<BBHHHH", 1, 1, 54, 0, 34, 16),
               "IPv6 segments": struct.pack("<BBHHHH", 1, 4, 54, 8, 34, 16)}
    for name, target in forbidden.items():
        for what, header in headers.items():
            yield (f"{what} to {name}", lambda word, target=target, header=header: [
                (packet(attacker.address, target, UDP, datagram(word * 40)), header),
                (packet(attacker.address, target, TCP, segment(attacker.address, target, 4000, 22, 0x10, word * 40)), header)])


def attack(attacker, eyes, more):
    forbidden = targets() | more
    for shape in (source_routes, fragments, other_protocols, errors_about_others, offloads):
        expect_nothing(attacker, eyes, shape(attacker, forbidden))


def agent_shapes():
    with Attacker() as attacker:
        eyes = Eyes(agent="eth0", gateway="eth0", internet="outside", alice_gateway="eth0")
        word = os.urandom(8)
        attacker.write(packet(attacker.address, attacker.host, UDP, datagram(word)))
        expect(True, eventually(lambda: bool(eyes.saw(word)), 3), "what is permitted arrives")
        attack(attacker, eyes, {"the internet": address(INTERNET), "the host's uplink": address(HOST),
                                "its gateway past the host": address(gateway.address)})
        eyes.close()


def gateway_shapes():
    """A gateway may reach the internet; what it may not is the same for all shapes."""
    with Attacker(role=GATEWAY, environment=1) as attacker:
        eyes = Eyes(agent="eth0", gateway="eth0", internet="outside", alice_gateway="eth0")
        word = os.urandom(8)
        attacker.write(packet(attacker.address, address(INTERNET), UDP, datagram(word)))
        expect(True, eventually(lambda: bool(eyes.saw(word)), 3), "what is permitted arrives")
        attack(attacker, eyes, {"the host's uplink": address(HOST), "Alice's other gateway": address(gateway.address),
                                "its host end": attacker.host})
        eyes.close()


def many_flows_of_a_gateway():
    """Its end deletes its agents' flows, and the engine serves nobody meanwhile: that must not take long."""
    attackers = [Attacker() for _ in range(4)]
    for attacker in attackers:
        for port in range(2000, 2512):
            attacker.write(packet(attacker.address, attacker.host, UDP, datagram(b"x", 53, port)))
    with open("/proc/sys/net/netfilter/nf_conntrack_count", encoding="ascii") as file:
        expect(True, int(file.read()) > 2000, "there are many flows")
    began = time.monotonic()
    gateway.end()
    with Client(BOB) as bob:
        bob.lease()
    took = 1000 * (time.monotonic() - began)
    note(f"a lease of somebody else beside the end of a gateway with 2048 flows: {took:.0f} ms")
    expect(True, took < 400, f"{took:.0f} ms")
    for attacker in attackers:
        attacker.close()


make_uplink()
follow_source_routes()
world.start()
bystander = world.bystander
gateway = Guest("alice_gateway", ALICE, "gateway")
server = listen("agent", 2222)
kept = dial(None, bystander.agent.address, 2222)  # by root, who may
host_connection = kept.getsockname()
case("a31 shapes of packets from an agent")(agent_shapes)
case("a31 shapes of packets from a gateway")(gateway_shapes)
case("a37 a gateway with many flows ends", oracle=False)(many_flows_of_a_gateway)
finish()
