#!/usr/bin/env python3
"""Watches what leaves the gateway's namespace for where it has no business: one JSON line each.

    gateway_canary.py LOG

Looks at every packet that begins a flow (TCP SYN, any UDP) on every interface of the namespace, and at any IPv6 but
neighbour discovery. Business is: DNS with the resolver, 80 and 443 of the origin, the orchestrator on loopback, answers to agents.
"""
import json
import socket
import struct
import sys

BUSINESS = {(17, "203.0.113.53", 53), (6, "203.0.113.53", 53), (6, "203.0.113.10", 80), (6, "203.0.113.10", 443), (6, "127.0.0.1", 7400)}
ETHERNET_P_ALL = 3
PACKET_OUTGOING = 4


def begins_flow(packet):
    """(protocol, address, port) that a packet opens, or None."""
    protocol, header = packet[9], (packet[0] & 15) * 4
    port, = struct.unpack("!H", packet[header + 2:header + 4])
    if protocol == 6 and packet[header + 13] & 0x12 != 2:
        return None
    return (protocol, socket.inet_ntoa(packet[16:20]), port) if protocol in (6, 17) else None


def main():
    watcher = socket.socket(socket.AF_PACKET, socket.SOCK_DGRAM, socket.htons(ETHERNET_P_ALL))
    log = open(sys.argv[1], "a", buffering=1)
    print("ready", flush=True)
    while True:
        packet, (interface, kind, direction, *_) = watcher.recvfrom(65536)
        if direction != PACKET_OUTGOING:
            continue
        if kind == 0x0800:
            flow = begins_flow(packet)
            source_port, = struct.unpack("!H", packet[20:22])
            is_answer = flow and flow[0] == 17 and source_port == 53
            if flow and flow not in BUSINESS and not is_answer:
                log.write(json.dumps({"interface": interface, "flow": flow}) + "\n")
        elif kind == 0x86DD and packet[6] != 58 and packet[6] != 0:
            log.write(json.dumps({"interface": interface, "ipv6": packet[:48].hex()}) + "\n")


main()
