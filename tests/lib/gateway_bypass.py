#!/usr/bin/env python3
"""Ways round a gateway, each tried from an agent, each judged by what somebody outside saw.

    gateway_bypass.py INTERNET-LOG CANARY-LOG AUTHORITY.PEM

Run in the agent's namespace (10.243.0.7; its gateway 10.243.0.6) of tests/lib/gateway_world.bash. Prints TAP.

A case sends bytes and says what must have come of them:
    answer    what the agent may see: a predicate over what came back, so that a refusal is one, and not silence by luck
    outside   which requests the internet may have received since: none, unless the case names some
After every case also: no DNS question for anything but names in `asked`, nothing at a canary (listeners beside the gateway
and beside the origin, and every packet that leaves the gateway for an address it has no business with).
"""
import base64
import json
import os
import re
import socket
import ssl
import struct
import sys
import time

GATEWAY = "10.243.0.6"
TOKEN = "token-one"
AUTHORIZATION = b"Basic " + base64.b64encode(b"agent:" + TOKEN.encode())
INTERNET_LOG, CANARY_LOG, AUTHORITY = sys.argv[1:4]
ALLOWED = b"allowed.example"

cases = []


def case(name, send, answer, outside=None, asked=()):
    """outside: a list of (method, path) that the origin received, in any order; None: none."""
    cases.append((name, send, answer, outside or [], asked))


# ---- what comes back ------------------------------------------------------------------------------------------------

class Answer:
    def __init__(self, data=b"", end="open", error=""):
        self.data, self.end, self.error = data, end, error

    def statuses(self):
        return [int(status) for status in re.findall(rb"(?:^|\n)HTTP/1\.[01] (\d\d\d)", self.data)]

    def rules(self):
        found = re.findall(rb'"rule": ?"([^"]*)"', self.data)
        found += re.findall(rb"HTTP/1\.1 \d\d\d [^\r\n]*\(([^)\r\n]*)\)", self.data)
        return {rule.decode() for rule in found}

    def __str__(self):
        return f"statuses {self.statuses()} rules {sorted(self.rules())} end {self.end} error {self.error} data {self.data[:300]!r}"


def refused(*rules, status=None):
    """The last answer is a refusal, by one of these rules when some are named."""
    def judge(answer):
        statuses = answer.statuses()
        if not statuses or not 400 <= statuses[-1] < 500:
            return False
        if status is not None and statuses[-1] != status:
            return False
        return not rules or bool(answer.rules() & set(rules))
    return judge


def cut(answer):
    """No answer of the other side's content: an alert, an end, a reset, or a refusal in HTTP."""
    return refused()(answer) or (not answer.statuses() or answer.statuses() == [200] and b"Connection established" in answer.data) and \
        (answer.end in ("closed", "reset", "alert") or bool(answer.error))


def answered(*statuses):
    return lambda answer: answer.statuses() == list(statuses)


def either(*judges):
    return lambda answer: any(judge(answer) for judge in judges)


# ---- ways to send -----------------------------------------------------------------------------------------------------

def collect(stream, quiet=0.6, first=6.0):
    data, end, error = b"", "open", ""
    stream.settimeout(first)
    try:
        while True:
            part = stream.recv(65536)
            if not part:
                end = "closed"
                break
            data += part
            stream.settimeout(quiet)
    except (socket.timeout, ssl.SSLWantReadError):
        pass
    except ssl.SSLError as failure:
        end, error = "alert", str(failure)
    except OSError as failure:
        end, error = "reset", str(failure)
    return Answer(data, end, error)


def connect(port=8119, address=GATEWAY):
    return socket.create_connection((address, port), 5)


def raw(data, port=8119, pieces=False):
    def send():
        with connect(port) as stream:
            try:
                if pieces:
                    for at in range(len(data)):
                        stream.sendall(data[at:at + 1])
                else:
                    stream.sendall(data)
            except OSError as failure:
                return Answer(b"", "reset", str(failure))
            return collect(stream)
    return send


def connect_head(target, fields=b""):
    return b"CONNECT " + target + b" HTTP/1.1\r\nHost: " + target + b"\r\nProxy-Authorization: " + AUTHORIZATION + b"\r\n" + fields + b"\r\n"


def tunnel(target=b"allowed.example:443"):
    stream = connect()
    stream.sendall(connect_head(target))
    head = b""
    while b"\r\n\r\n" not in head:
        part = stream.recv(4096)
        if not part:
            break
        head += part
    return stream, head


def context(minimum=None, maximum=None, alpn=None):
    made = ssl.create_default_context(cafile=AUTHORITY)
    made.check_hostname = False
    if minimum:
        made.minimum_version = minimum
    if maximum:
        made.maximum_version = maximum
    if alpn:
        made.set_alpn_protocols(alpn)
    return made


def inside(data, sni="allowed.example", target=b"allowed.example:443", port=None, **options):
    """Bytes inside TLS: in a CONNECT tunnel, or straight to a transparent port."""
    def send():
        if port is None:
            stream, head = tunnel(target)
            if b" 200 " not in head.split(b"\r\n")[0]:
                return Answer(head + collect(stream).data, "closed")
        else:
            stream = connect(port)
        stream.settimeout(6)
        try:
            with context(**options).wrap_socket(stream, server_hostname=sni) as secure:
                secure.sendall(data)
                return collect(secure)
        except ssl.SSLError as failure:
            return Answer(b"", "alert", str(failure))
        except OSError as failure:
            return Answer(b"", "reset", str(failure))
    return send


def request(path=b"/hello", host=ALLOWED, method=b"GET", fields=b"", body=b"", version=b"HTTP/1.1"):
    """In origin-form, for tunnels and transparent ports."""
    return method + b" " + path + b" " + version + b"\r\nHost: " + host + b"\r\n" + fields + b"\r\n" + body


def absolute(target, host=None, method=b"GET", fields=b"", body=b"", version=b"HTTP/1.1"):
    """In absolute-form, for the proxy port."""
    host_field = b"" if host == b"" else b"Host: " + (host or target.split(b"/")[2]) + b"\r\n"
    return method + b" " + target + b" " + version + b"\r\n" + host_field + b"Proxy-Authorization: " + AUTHORIZATION + b"\r\n" + fields + b"\r\n" + body


# ---- names and addresses in every spelling ------------------------------------------------------------------------------

LITERALS = {
    "dotted quad": b"203.0.113.10", "one decimal number": b"3405803786", "octal": b"0313.0.0161.012", "hexadecimal": b"0xcb00710a",
    "hexadecimal by parts": b"0xcb.0x0.0x71.0xa", "two parts": b"203.28938", "three parts": b"203.0.28938", "loopback in short": b"127.1",
    "zero": b"0", "all zero": b"0.0.0.0", "with a trailing dot": b"203.0.113.10.", "padded": b"203.000.113.010",
    "IPv6": b"[2001:db8::1]", "IPv6 loopback": b"[::1]", "v4-mapped": b"[::ffff:203.0.113.10]", "v4-mapped in hexadecimal": b"[::ffff:cb00:710a]",
    "v4-compatible": b"[::203.0.113.10]", "NAT64": b"[64:ff9b::203.0.113.10]", "6to4": b"[2002:cb00:710a::]", "with a zone": b"[fe80::1%25inner]",
    "metadata": b"169.254.169.254", "metadata as a number": b"2852039166", "metadata, IPv6": b"[fd00:ec2::254]",
    "the host": b"10.243.0.6", "a sibling": b"10.243.0.9", "loopback, the orchestrator's address": b"127.0.0.1",
}
for label, literal in LITERALS.items():
    case(f"CONNECT to an address: {label}", raw(connect_head(literal + b":443")), refused())
for label in ("dotted quad", "one decimal number", "v4-mapped", "metadata", "the host", "a sibling"):
    case(f"absolute-form to an address: {label}", raw(absolute(b"http://" + LITERALS[label] + b"/hello")), refused())
case("CONNECT to the orchestrator's port", raw(connect_head(b"127.0.0.1:7400")), refused("ip-literal"))
case("CONNECT to the orchestrator by a name of this host", raw(connect_head(b"localhost:7400")), refused())
case("CONNECT to the gateway itself", raw(connect_head(b"10.243.0.6:8119")), refused("ip-literal"))
case("CONNECT to a metadata service's name", raw(connect_head(b"metadata.google.internal:80")), refused("default-deny"))

ODD_NAMES = {
    "NUL, allowed name first": b"allowed.example\0.blocked.example", "NUL, blocked name first": b"blocked.example\0.allowed.example",
    "NUL, percent-encoded": b"blocked.example%00.allowed.example", "percent-encoded dot": b"www%2eallowed.example",
    "percent-encoded letter": b"%61llowed.example", "a tab": b"allowed.example\t.blocked.example", "a blank": b"allowed.example blocked.example",
    "userinfo": b"allowed.example@blocked.example", "userinfo with password": b"a:b@blocked.example", "userinfo, allowed host": b"blocked.example@allowed.example",
    "a fragment": b"blocked.example#allowed.example", "a path": b"blocked.example/allowed.example", "a query": b"blocked.example?allowed.example",
    "a backslash": b"blocked.example\\allowed.example", "a semicolon": b"blocked.example;allowed.example", "a comma": b"allowed.example,blocked.example",
    "two trailing dots": b"allowed.example..", "an empty label": b"www..allowed.example", "a leading dot": b".allowed.example",
    "an underscore": b"under_score.allowed.example", "a hyphen at the end of a label": b"a-.allowed.example",
    "a label of 64 letters": b"a" * 64 + b".allowed.example", "a name of 300 letters": (b"a" * 50 + b".") * 6 + b"allowed.example",
    "a Cyrillic letter in UTF-8": "\u0430llowed.example".encode(), "the same as an A-label": b"xn--llowed-2ve.example",
    "full-width letters": "\uff41llowed.example".encode(), "an ideographic full stop": "allowed\u3002example".encode(),
    "a soft hyphen": "al\u00adlowed.example".encode(), "a zero-width joiner": "allowed\u200d.example".encode(),
    "the suffix without a dot": b"notallowed.example", "the allowed name as a prefix": b"allowed.example.blocked.example",
    "a star": b"*.allowed.example", "a carriage return": b"allowed.example\r.blocked.example", "a DEL": b"allowed.example\x7f",
}
for label, name in ODD_NAMES.items():
    case(f"CONNECT to an odd name: {label}", raw(connect_head(name + b":443")), either(refused(), cut))
ODD_PORTS = {"none": b"allowed.example", "empty": b"allowed.example:", "zero": b"allowed.example:0", "above 65535": b"allowed.example:65979",
             "wrapped to 443": b"allowed.example:4294967739", "negative": b"allowed.example:-443", "hexadecimal": b"allowed.example:0x1bb",
             "signed": b"allowed.example:+443", "a blank": b"allowed.example: 443", "twice": b"allowed.example:443:443",
             "not listed": b"allowed.example:22", "the DNS port": b"allowed.example:53", "mail": b"allowed.example:25"}
for label, target in ODD_PORTS.items():
    case(f"CONNECT with an odd port: {label}", raw(connect_head(target)), either(refused(), cut))
case("a blocked name in capitals", raw(connect_head(b"BLOCKED.EXAMPLE:443")), refused("default-deny"))
case("an allowed name in capitals is that name", inside(request(), target=b"ALLOWED.Example:443"), answered(200), [("GET", "/hello")],
     asked=("allowed.example",))
case("an allowed name with its trailing dot is that name", inside(request(), target=b"allowed.example.:443"), answered(200), [("GET", "/hello")],
     asked=("allowed.example",))

# ---- names that lead elsewhere --------------------------------------------------------------------------------------------
for label, name in {"private": b"private.example", "loopback": b"loopback.example", "metadata": b"metadata.example", "another slot": b"slot.example",
                    "public and private mixed": b"mixed.example", "CNAME to a private name": b"alias.example"}.items():
    case(f"a name that leads to an address that is not public: {label}", 
         inside(request(host=name), sni=name.decode(), target=name + b":443"), refused("private-answer"), asked=(name.decode(), "private.example"))


def rebind():
    """Every second answer for this name is loopback. A connection that was checked may be used again: it is pinned."""
    statuses = []
    for _ in range(4):
        answer = raw(absolute(b"http://rebind.example/hello", fields=b"Connection: close\r\n"))()
        statuses += answer.statuses()
    return Answer(b"".join(b"HTTP/1.1 %d x\r\n" % status for status in statuses))


case("rebinding between requests", rebind, lambda answer: len(answer.statuses()) == 4 and set(answer.statuses()) <= {200, 403},
     [("GET", "/hello")], asked=("rebind.example",))

# ---- absolute-form and Host -----------------------------------------------------------------------------------------------
case("absolute-form to a blocked host, Host allowed", raw(absolute(b"http://blocked.example/hello", ALLOWED)), refused())
case("absolute-form to an allowed host, Host blocked", raw(absolute(b"http://allowed.example/hello", b"blocked.example")), refused("host-mismatch"))
case("absolute-form with userinfo", raw(absolute(b"http://allowed.example@blocked.example/hello", ALLOWED)), refused())
case("absolute-form with a fragment before the host", raw(absolute(b"http://#@blocked.example/hello", ALLOWED)), refused())
case("absolute-form with a backslash", raw(absolute(b"http://blocked.example\\@allowed.example/hello", ALLOWED)), refused())
case("absolute-form of https, which would be in clear", raw(absolute(b"https://allowed.example/hello")), refused())
case("absolute-form of ftp", raw(absolute(b"ftp://allowed.example/hello")), refused())
case("absolute-form of file", raw(absolute(b"file:///etc/passwd", ALLOWED)), refused())
case("two Host fields", raw(absolute(b"http://allowed.example/hello", fields=b"Host: blocked.example\r\n")), refused())
case("no Host field", raw(absolute(b"http://allowed.example/hello", b"")), refused())
case("Host with a blank before the colon", raw(absolute(b"http://allowed.example/hello", fields=b"Host : blocked.example\r\n")), refused())
case("origin-form on the proxy port", raw(absolute(b"/hello", ALLOWED)), refused())
case("authority-form of GET", raw(absolute(b"allowed.example:80", ALLOWED)), refused())
case("asterisk-form of GET", raw(absolute(b"*", ALLOWED)), refused())
case("connect in small letters", raw(connect_head(b"allowed.example:443").replace(b"CONNECT", b"connect")), refused())
case("no token", raw(b"CONNECT allowed.example:443 HTTP/1.1\r\nHost: allowed.example:443\r\n\r\n"), refused(status=407))
case("a wrong token", raw(connect_head(b"allowed.example:443").replace(AUTHORIZATION, b"Basic " + base64.b64encode(b"agent:token-two"))), refused())
case("a token of another scheme", raw(connect_head(b"allowed.example:443").replace(AUTHORIZATION, b"Bearer token-one")), refused())
case("two tokens", raw(connect_head(b"allowed.example:443", b"Proxy-Authorization: Basic eDp5\r\n")), refused())

# ---- smuggling ------------------------------------------------------------------------------------------------------------
SMUGGLED = b"GET http://allowed.example/smuggled HTTP/1.1\r\nHost: allowed.example\r\n\r\n"
INNER = b"GET /smuggled HTTP/1.1\r\nHost: allowed.example\r\n\r\n"
FRAMINGS = {
    "two lengths that differ": b"Content-Length: 0\r\nContent-Length: 4\r\n", "two lengths alike": b"Content-Length: 4\r\nContent-Length: 4\r\n",
    "a list of lengths": b"Content-Length: 4, 4\r\n", "length and chunked": b"Content-Length: 4\r\nTransfer-Encoding: chunked\r\n",
    "chunked and length": b"Transfer-Encoding: chunked\r\nContent-Length: 4\r\n", "chunked twice": b"Transfer-Encoding: chunked, chunked\r\n",
    "two Transfer-Encodings": b"Transfer-Encoding: chunked\r\nTransfer-Encoding: identity\r\n", "identity": b"Transfer-Encoding: identity\r\n",
    "chunked, then identity": b"Transfer-Encoding: chunked, identity\r\n", "gzip before chunked": b"Transfer-Encoding: gzip, chunked\r\n",
    "xchunked": b"Transfer-Encoding: xchunked\r\n", "chunked with a parameter": b"Transfer-Encoding: chunked;a=b\r\n",
    "chunked after a vertical tab": b"Transfer-Encoding: \x0bchunked\r\n", "chunked in quotes": b'Transfer-Encoding: "chunked"\r\n',
    "a blank before the colon": b"Transfer-Encoding : chunked\r\n", "a blank before the name": b" Transfer-Encoding: chunked\r\n",
    "a folded value": b"Transfer-Encoding:\r\n chunked\r\n", "a folded field before": b"X: y\r\n z\r\nContent-Length: 4\r\n",
    "a bare LF": b"X: y\nTransfer-Encoding: chunked\r\n", "a bare CR": b"X: y\rTransfer-Encoding: chunked\r\n", "a NUL in a value": b"X: y\0z\r\n",
    "a signed length": b"Content-Length: +4\r\n", "a negative length": b"Content-Length: -4\r\n", "a hexadecimal length": b"Content-Length: 0x4\r\n",
    "a length with a blank inside": b"Content-Length: 1 4\r\n", "a length that overflows": b"Content-Length: 18446744073709551620\r\n",
    "an empty length": b"Content-Length: \r\n", "a field without a name": b": x\r\n", "a field without a colon": b"Transfer-Encoding chunked\r\n",
    "a field name with a control": b"Transfer-Enco\x01ding: chunked\r\n", "a colon in quotes": b'"X: y": z\r\n',
    "Connection that names Content-Length": b"Connection: content-length\r\nContent-Length: 4\r\nContent-Length: 4\r\n",
}
for label, fields in FRAMINGS.items():
    case(f"framing in clear: {label}", raw(absolute(b"http://allowed.example/upload", method=b"POST", fields=fields, body=b"0\r\n\r\n" + SMUGGLED)),
         either(refused(), cut))
for label in ("two lengths that differ", "length and chunked", "two Transfer-Encodings", "xchunked", "a folded value", "a bare LF", "a blank before the colon",
              "a signed length"):
    case(f"framing inside TLS: {label}", inside(request(b"/upload", method=b"POST", fields=FRAMINGS[label], body=b"0\r\n\r\n" + INNER)), either(refused(), cut))
CHUNKS = {
    "an extension": b"4;a=b\r\nbody\r\n0\r\n\r\n", "an extension with a bare LF": b"4;\nxx\r\nbody\r\n0\r\n\r\n", "0x": b"0x4\r\nbody\r\n0\r\n\r\n",
    "a sign": b"+4\r\nbody\r\n0\r\n\r\n", "a blank": b"4 \r\nbody\r\n0\r\n\r\n", "a size that overflows": b"10000000000000004\r\nbody\r\n0\r\n\r\n",
    "no size": b"\r\nbody\r\n0\r\n\r\n", "LF after the size": b"4\nbody\r\n0\r\n\r\n", "more than the size": b"4\r\nbodybody\r\n0\r\n\r\n",
    "an underscore": b"1_0\r\nbody\r\n0\r\n\r\n",
}
for label, body in CHUNKS.items():
    case(f"chunked in clear: {label}",
         raw(absolute(b"http://allowed.example/upload", method=b"POST", fields=b"Transfer-Encoding: chunked\r\n", body=body + SMUGGLED)),
         either(refused(), cut), None, asked=("allowed.example",))
case("HTTP/1.0 with chunked", raw(absolute(b"http://allowed.example/upload", method=b"POST", version=b"HTTP/1.0",
                                          fields=b"Transfer-Encoding: chunked\r\n", body=b"0\r\n\r\n" + SMUGGLED)), either(refused(), cut, answered(505)))
case("HTTP/0.9", raw(b"GET http://allowed.example/hello\r\n"), either(refused(), cut))
case("HTTP/2.0 in a request line", raw(absolute(b"http://allowed.example/hello", version=b"HTTP/2.0")), either(refused(), cut, answered(505)))
case("the preface of HTTP/2 in clear", raw(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\0\0\0\4\0\0\0\0\0"), either(refused(), cut, answered(505)))
case("a method with a control", raw(absolute(b"http://allowed.example/hello", method=b"G\x01ET")), either(refused(), cut))
case("a request line with two blanks", raw(absolute(b"http://allowed.example/hello").replace(b"GET ", b"GET  ")), either(refused(), cut))
case("a request line with a tab", raw(absolute(b"http://allowed.example/hello").replace(b"GET ", b"GET\t")), either(refused(), cut))
case("a target with a control", raw(absolute(b"http://allowed.example/he\x01llo")), either(refused(), cut))
case("a target in UTF-8", raw(absolute("http://allowed.example/h\u00e9llo".encode())), either(refused(), cut))
case("200 fields", raw(absolute(b"http://allowed.example/hello", fields=b"".join(b"X%d: y\r\n" % n for n in range(200)))), refused(status=431))
case("a head of 80 kB", raw(absolute(b"http://allowed.example/hello", fields=b"X: " + b"y" * 80000 + b"\r\n")), refused(status=431))
case("a second request to a blocked host on the same connection",
     raw(absolute(b"http://allowed.example/hello") + absolute(b"http://blocked.example/hello")),
     lambda answer: answer.statuses()[:1] == [200] and answer.statuses()[1:] in ([], [403]), [("GET", "/hello")], asked=("allowed.example",))
case("the body of a refused request is not a request", raw(absolute(b"http://blocked.example/x", method=b"POST",
     fields=b"Content-Length: %d\r\n" % len(SMUGGLED), body=SMUGGLED)), refused())
case("the body of a GET is not a request", raw(absolute(b"http://allowed.example/hello", fields=b"Content-Length: %d\r\n" % len(SMUGGLED), body=SMUGGLED)),
     either(answered(200), refused()), [("GET", "/hello")], asked=("allowed.example",))
case("Upgrade: h2c is not passed on", raw(absolute(b"http://allowed.example/echo",
     fields=b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABkAAQAAP__\r\n")),
     either(refused(), lambda answer: answer.statuses() == [200] and b"h2c" not in answer.data), [("GET", "/echo")], asked=("allowed.example",))

# ---- TLS ------------------------------------------------------------------------------------------------------------------
for label, sni in {"of a blocked host": "blocked.example", "of another allowed host": "www.allowed.example", "none": None,
                   "a parent of the allowed name": "example", "with the allowed name as a prefix": "allowed.example.blocked.example"}.items():
    case(f"SNI {label}", inside(request(), sni=sni), cut)
case("Host of a blocked host inside TLS", inside(request(host=b"blocked.example")), either(refused(), cut))
case("Host of another allowed host inside TLS", inside(request(host=b"www.allowed.example")), either(refused(), cut))
case("Host of an address inside TLS", inside(request(host=b"203.0.113.10")), either(refused(), cut))
case("Host with another port inside TLS", inside(request(host=b"allowed.example:8443")), either(refused(), cut))
case("absolute-form to a blocked host inside TLS", inside(request(b"http://blocked.example/hello")), either(refused(), cut))
case("absolute-form to a blocked host inside TLS, Host too", inside(request(b"https://blocked.example/hello", host=b"blocked.example")), either(refused(), cut))
case("CONNECT inside TLS", inside(request(b"blocked.example:443", method=b"CONNECT")), either(refused(), cut))
case("a second request inside TLS with a blocked Host", inside(request() + request(host=b"blocked.example")),
     lambda answer: answer.statuses() in ([200, 403], [200, 421], [200, 400], [200]), [("GET", "/hello")], asked=("allowed.example",))
case("TLS 1.1", inside(request(), maximum=ssl.TLSVersion.TLSv1_1, minimum=ssl.TLSVersion.TLSv1), cut)
case("ALPN of an unknown protocol is HTTP/1.1 or an end", inside(request(), alpn=["hq-29"]), either(answered(200), cut), [("GET", "/hello")], asked=("allowed.example",))
case("something else than TLS in a tunnel", raw(connect_head(b"allowed.example:443") + b"SSH-2.0-OpenSSH_9.2\r\n"), either(refused(), cut))
case("a plain request to a blocked host in a tunnel", raw(connect_head(b"allowed.example:443") + request(host=b"blocked.example")), either(refused(), cut))
case("SSLv2 hello in a tunnel", raw(connect_head(b"allowed.example:443") + b"\x80\x2e\x01\x00\x02" + b"\0" * 43), either(refused(), cut))
case("a record of DTLS in a tunnel", raw(connect_head(b"allowed.example:443") + b"\x16\xfe\xfd" + b"\0" * 40), either(refused(), cut))
case("bytes before the hello", raw(connect_head(b"allowed.example:443") + b"\x17\x03\x03\x00\x05hello"), either(refused(), cut))


def hello(extensions):
    """A ClientHello by hand."""
    body = struct.pack("!H", len(extensions)) + extensions
    content = b"\3\3" + os.urandom(32) + b"\0" + b"\0\2\x13\1" + b"\1\0" + body
    message = b"\1" + struct.pack("!I", len(content))[1:] + content
    return b"\x16\3\1" + struct.pack("!H", len(message)) + message


def extension(kind, data):
    return struct.pack("!HH", kind, len(data)) + data


def names(*listed, kind=0):
    entries = b"".join(struct.pack("!BH", kind, len(name)) + name for name in listed)
    return extension(0, struct.pack("!H", len(entries)) + entries)


HELLOS = {
    "two names": names(b"allowed.example", b"blocked.example"), "two SNI extensions": names(b"allowed.example") + names(b"blocked.example"),
    "an unknown kind of name": names(b"allowed.example", kind=7), "a NUL in the name": names(b"allowed.example\0.blocked.example"),
    "an address": names(b"203.0.113.10"), "an empty name": names(b""), "ECH": names(b"allowed.example") + extension(0xFE0D, b"\0" + b"\0" * 40),
    "a length that lies": b"\0\0\0\x40\0\x3e\0\0\x3ballowed.example",
}
for label, extensions in HELLOS.items():
    case(f"a ClientHello with {label}", raw(connect_head(b"allowed.example:443") + hello(extensions)), cut)
    if label != "an unknown kind of name":
        case(f"a ClientHello with {label}, transparent", raw(hello(extensions), port=443), cut)

# ---- the transparent ports ------------------------------------------------------------------------------------------------
case("transparent: Host of a blocked host", raw(request(host=b"blocked.example"), port=80), refused("default-deny"))
case("transparent: Host of an address", raw(request(host=b"203.0.113.10"), port=80), refused())
case("transparent: no Host", raw(b"GET /hello HTTP/1.1\r\n\r\n", port=80), refused())
case("transparent: Host with another port", raw(request(host=b"allowed.example:8080"), port=80), refused())
case("transparent: absolute-form to a blocked host", raw(request(b"http://blocked.example/hello"), port=80), refused())
case("transparent: CONNECT", raw(connect_head(b"allowed.example:443"), port=80), refused())
case("transparent: TLS to the port of HTTP", raw(hello(names(b"allowed.example")), port=80), either(refused(), cut, lambda answer: not answer.data))
case("transparent: HTTP to the port of TLS", raw(request(), port=443), either(refused(), cut))
case("transparent: SNI of a blocked host", inside(request(), sni="blocked.example", port=443), cut)
case("transparent: no SNI", inside(request(), sni=None, port=443), cut)
case("transparent: Host differs from SNI", inside(request(host=b"www.allowed.example"), port=443), either(refused(), cut))

# ---- method and path ------------------------------------------------------------------------------------------------------
NARROW = b"narrow.example"
for label, path in {"another path": b"/private", "dot segments": b"/public/../private", "encoded dots": b"/public/%2e%2e/private",
                    "an encoded slash": b"/public/..%2fprivate", "two slashes in front": b"//private", "a backslash": b"/public/..\\private",
                    "an encoded backslash": b"/public/..%5cprivate", "dots at the end": b"/public/..", "a single dot": b"/public/./../private",
                    "a parameter": b"/public/..;/private", "capitals": b"/PUBLIC/x", "doubly encoded": b"/public/%252e%252e/private",
                    "a NUL": b"/public/%00/../private", "overlong UTF-8": b"/public/%c0%ae%c0%ae/private",
                    "the prefix without its slash": b"/publicity"}.items():
    case(f"a path that is not allowed: {label}", inside(request(path, host=NARROW), sni="narrow.example", target=b"narrow.example:443"),
         either(refused(), cut))
for method in (b"POST", b"DELETE", b"TRACE", b"get", b"PATCH"):
    case(f"a method that is not allowed: {method.decode()}", inside(request(b"/public/x", host=NARROW, method=method), sni="narrow.example",
         target=b"narrow.example:443"), either(refused(), cut))
for field in (b"X-HTTP-Method-Override: DELETE", b"X-HTTP-Method: delete", b"X_Method_Override: PUT", b"X-Original-URL: /private",
              b"X-Rewrite-URL: /private"):
    case(f"another method or path in a field: {field.decode()}", inside(request(b"/public/x", host=NARROW, fields=field + b"\r\n"),
         sni="narrow.example", target=b"narrow.example:443"), either(refused(), cut))
for query in (b"_method=DELETE", b"a=b&%5Fmethod=delete"):
    case(f"another method in the query: {query.decode()}", inside(request(b"/public/x?" + query, host=NARROW), sni="narrow.example",
         target=b"narrow.example:443"), either(refused(), cut))
case("HEAD where GET is allowed", inside(request(b"/public/x", host=NARROW, method=b"HEAD"), sni="narrow.example", target=b"narrow.example:443"),
     answered(404), [("HEAD", "/public/x")], asked=("narrow.example",))
case("WebSocket on a path that is not allowed, frames behind it",
     inside(request(b"/private", host=NARROW, fields=b"Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n"
                    b"Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n", body=b"\x81\x85\0\0\0\0hello" + INNER),
            sni="narrow.example", target=b"narrow.example:443"), either(refused(), cut))


# ---- HTTP/2 -----------------------------------------------------------------------------------------------------------------

def literal(name, value):
    """A field as HPACK without tables: never indexed, no Huffman code (RFC 7541, 6.2.3)."""
    def text(data):
        size = len(data)
        if size < 127:
            return bytes([size]) + data
        size -= 127
        out = b"\x7f"
        while size >= 128:
            out += bytes([size & 127 | 128])
            size >>= 7
        return out + bytes([size]) + data
    return b"\x10" + text(name) + text(value)


def frame(kind, flags, stream, data):
    return struct.pack("!I", len(data))[1:] + bytes([kind, flags]) + struct.pack("!I", stream) + data


def head(*fields):
    return b"".join(literal(name, value) for name, value in fields)


USUAL = [(b":method", b"GET"), (b":scheme", b"https"), (b":authority", b"allowed.example"), (b":path", b"/hello")]


def with_field(*added, **changed):
    fields = []
    for name, value in USUAL:
        value = changed.get(name[1:].decode(), value)
        if value is not None:
            fields.append((name, value))
    return fields + list(added)


def over_http2(frames, sni="allowed.example", target=b"allowed.example:443"):
    """Frames after the preface; what comes back, as status numbers and errors in words."""
    def send():
        stream, head_bytes = tunnel(target)
        if b" 200 " not in head_bytes.split(b"\r\n")[0]:
            return Answer(head_bytes, "closed")
        try:
            secure = context(alpn=["h2"]).wrap_socket(stream, server_hostname=sni)
            if secure.selected_alpn_protocol() != "h2":
                return Answer(b"", "alert", "no h2")
            secure.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + frame(4, 0, 0, b"") + frames)
            got = collect(secure)
        except OSError as failure:
            return Answer(b"", "reset", str(failure))
        return read_frames(got)
    return send


def read_frames(got):
    at, words, body = 0, [], b""
    while at + 9 <= len(got.data):
        length = int.from_bytes(got.data[at:at + 3], "big")
        kind = got.data[at + 3]
        data = got.data[at + 9:at + 9 + length]
        if kind == 1:
            words.append("head")
        if kind == 0:
            body += data
        if kind == 3:
            words.append("reset")
        if kind == 7:
            words.append("goaway")
        at += 9 + length
    answer = Answer(body, got.end, got.error)
    answer.words = words
    return answer


def refused_over_http2(answer):
    words = getattr(answer, "words", [])
    return "reset" in words or "goaway" in words or b'"rule"' in answer.data or answer.end in ("closed", "reset", "alert")


END = 5  # END_STREAM and END_HEADERS
case("HTTP/2: a usual request", over_http2(frame(1, END, 1, head(*USUAL))), lambda answer: b"hello from" in answer.data, [("GET", "/hello")],
     asked=("allowed.example",))
LIES = {
    ":authority of a blocked host": with_field(authority=b"blocked.example"), ":authority of another allowed host": with_field(authority=b"www.allowed.example"),
    ":authority with userinfo": with_field(authority=b"allowed.example@blocked.example"), ":authority of an address": with_field(authority=b"203.0.113.10"),
    "Host of a blocked host beside :authority": with_field((b"host", b"blocked.example")), "only a Host of a blocked host": with_field((b"host", b"blocked.example"), authority=None),
    ":scheme of http": with_field(scheme=b"http"), ":path empty": with_field(path=b""), ":path in absolute-form": with_field(path=b"http://blocked.example/"),
    ":path with a blank": with_field(path=b"/hello HTTP/1.1"), ":path with CRLF": with_field(path=b"/hello HTTP/1.1\r\nHost: blocked.example\r\n\r\n"),
    ":method with CRLF": with_field(method=b"GET /smuggled HTTP/1.1\r\n"), "two :path": with_field((b":path", b"/smuggled")),
    "two :authority": with_field((b":authority", b"blocked.example")), "an unknown pseudo-header": with_field((b":smuggled", b"x")),
    "a pseudo-header behind a field": [(b"x", b"y")] + USUAL, "no :method": with_field(method=None), "no :path": with_field(path=None),
    "CRLF in a value": with_field((b"x", b"y\r\nTransfer-Encoding: chunked")), "LF in a value": with_field((b"x", b"y\nHost: blocked.example")),
    "NUL in a value": with_field((b"x", b"y\0z")), "a colon in a name": with_field((b"transfer-encoding: chunked\r\nx", b"y")),
    "capitals in a name": with_field((b"X-Upper", b"y")), "transfer-encoding": with_field((b"transfer-encoding", b"chunked")),
    "connection": with_field((b"connection", b"keep-alive")), "te other than trailers": with_field((b"te", b"chunked")),
    "upgrade": with_field((b"upgrade", b"websocket")), "CONNECT": [(b":method", b"CONNECT"), (b":authority", b"blocked.example:443")],
    "a response's status": with_field((b":status", b"200")),
}
for label, fields in LIES.items():
    case(f"HTTP/2: {label}", over_http2(frame(1, END, 1, head(*fields))), refused_over_http2)
UPLOAD = with_field(method=b"POST", path=b"/upload")
case("HTTP/2: more data than content-length", over_http2(frame(1, 4, 1, head(*UPLOAD, (b"content-length", b"4"))) +
     frame(0, 1, 1, b"body" + INNER)), refused_over_http2, asked=("allowed.example",))
case("HTTP/2: less data than content-length", over_http2(frame(1, 4, 1, head(*UPLOAD, (b"content-length", b"100"))) + frame(0, 1, 1, b"body")),
     refused_over_http2, asked=("allowed.example",))
case("HTTP/2: two lengths", over_http2(frame(1, 4, 1, head(*UPLOAD, (b"content-length", b"4"), (b"content-length", b"0"))) + frame(0, 1, 1, b"body")),
     refused_over_http2, asked=("allowed.example",))
case("HTTP/2: host in trailers", over_http2(frame(1, 4, 1, head(*UPLOAD)) + frame(0, 0, 1, b"body") + frame(1, END, 1, head((b":authority", b"blocked.example")))),
     refused_over_http2, asked=("allowed.example",))
case("HTTP/2: an even stream", over_http2(frame(1, END, 2, head(*USUAL))), refused_over_http2)
case("HTTP/2: a push promise from a client", over_http2(frame(5, 4, 1, struct.pack("!I", 2) + head(*USUAL))), refused_over_http2)
case("HTTP/2: a path that is not allowed", over_http2(frame(1, END, 1, head(*with_field(authority=NARROW, path=b"/private"))), sni="narrow.example",
     target=b"narrow.example:443"), refused_over_http2)
case("HTTP/2: encoded dots in a path", over_http2(frame(1, END, 1, head(*with_field(authority=NARROW, path=b"/public/%2e%2e/private"))), sni="narrow.example",
     target=b"narrow.example:443"), refused_over_http2)


# ---- DNS and other ports --------------------------------------------------------------------------------------------------

def question(name, kind=1, klass=1, flags=0x0100, count=1, extra=b""):
    labels = b"".join(bytes([len(label)]) + label for label in name.split(b".") if label)
    return struct.pack("!HHHHHH", 0x4242, flags, count, 0, 0, 0) + labels + b"\0" + struct.pack("!HH", kind, klass) + extra


def ask(packet, tcp=False):
    def send():
        if tcp:
            with connect(53) as stream:
                stream.sendall(struct.pack("!H", len(packet)) + packet)
                return collect(stream)
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as datagram:
            datagram.settimeout(1.5)
            datagram.connect((GATEWAY, 53))
            datagram.send(packet)
            try:
                return Answer(datagram.recv(4096))
            except socket.timeout:
                return Answer(b"", "closed")
            except OSError as failure:
                return Answer(b"", "reset", str(failure))
    return send


def no_answer_records(answer):
    at = 2 if answer.data[:2] != b"BB" and answer.data[2:4] == b"BB" else 0
    return len(answer.data) < at + 12 or struct.unpack("!H", answer.data[at + 6:at + 8])[0] == 0


secret = b"c2VjcmV0LWRhdGEtdGhhdC1sZWF2ZXM"
for label, packet in {
        "data in a label of a blocked zone": question(secret + b".blocked.example"), "TXT of an allowed name": question(secret + b".allowed.example", 16),
        "NULL records": question(secret + b".allowed.example", 10), "ANY": question(b"allowed.example", 255), "a transfer": question(b"allowed.example", 252),
        "CNAME": question(b"allowed.example", 5), "MX": question(b"allowed.example", 15), "PTR": question(b"10.113.0.203.in-addr.arpa", 12),
        "SVCB": question(b"allowed.example", 64), "HTTPS records": question(b"allowed.example", 65), "class CHAOS": question(b"version.bind", 16, 3),
        "two questions": question(b"allowed.example", count=2, extra=b"\7blocked\7example\0\0\1\0\1"), "an update": question(b"allowed.example", 6, 1, 0x2800),
        "a response": question(b"allowed.example", flags=0x8180), "a pointer that loops": struct.pack("!HHHHHH", 0x4242, 0x100, 1, 0, 0, 0) + b"\xc0\x0c\0\1\0\1",
        "a short packet": b"BB\1\0"}.items():
    case(f"DNS: {label}", ask(packet), no_answer_records)
case("DNS: data in a label below an allowed wildcard is answered here, never asked", ask(question(secret + b".allowed.example")),
     lambda answer: answer.data[-4:] == socket.inet_aton(GATEWAY))
case("DNS over TCP: data in a label of a blocked zone", ask(question(secret + b".blocked.example"), tcp=True), no_answer_records)


def silence(port, kind=socket.SOCK_DGRAM, data=b"\xc3\0\0\0\1" + b"\0" * 1200, address=GATEWAY):
    def send():
        with socket.socket(socket.AF_INET, kind) as stream:
            stream.settimeout(1)
            try:
                stream.connect((address, port))
                stream.send(data)
                return Answer(stream.recv(4096))
            except socket.timeout:
                return Answer(b"", "closed")
            except OSError as failure:
                return Answer(b"", "reset", str(failure))
    return send


def nothing(answer):
    return answer.data == b""


case("QUIC to the gateway", silence(443), nothing)
case("QUIC straight to the origin", silence(443, address="203.0.113.10"), nothing)
case("a dial straight to the origin", silence(80, socket.SOCK_STREAM, request(), "203.0.113.10"), nothing)
case("a dial straight to a resolver", silence(53, data=question(b"blocked.example"), address="203.0.113.53"), nothing)
case("the orchestrator's port at the gateway's address", silence(7400, socket.SOCK_STREAM, request()), nothing)


# ---- the judge --------------------------------------------------------------------------------------------------------------

def lines_after(path, offset):
    with open(path, "rb") as file:
        file.seek(offset)
        return [json.loads(line) for line in file.read().splitlines() if line]


def judge(name, send, answer_of, outside, asked):
    internet, canary = os.path.getsize(INTERNET_LOG), os.path.getsize(CANARY_LOG)
    answer = send()
    time.sleep(0.05)
    entries = lines_after(INTERNET_LOG, internet)
    complaints = []
    requests = sorted((entry["method"], entry["path"]) for entry in entries if entry["event"] == "request")
    if any(seen not in outside for seen in requests):
        complaints.append(f"the internet received {requests}, allowed were {outside}")
    questions = {entry["name"] for entry in entries if entry["event"] == "dns"}
    known = set(asked) | {"allowed.example", "narrow.example"}
    if questions - known:
        complaints.append(f"resolvers were asked for {sorted(questions - known)}")
    touched = lines_after(CANARY_LOG, canary)
    if touched:
        complaints.append(f"canaries were touched: {touched}")
    if not answer_of(answer):
        complaints.append(f"what came back: {answer} {getattr(answer, 'words', '')}")
    return complaints


def main():
    failed = 0
    chosen = [entry for entry in cases if len(sys.argv) < 5 or sys.argv[4] in entry[0]]
    for number, (name, send, answer_of, outside, asked) in enumerate(chosen, 1):
        try:
            complaints = judge(name, send, answer_of, outside, asked)
        except OSError as failure:
            complaints = [f"the case itself failed: {failure!r}"]
        print(("not ok" if complaints else "ok"), number, "-", name, flush=True)
        for complaint in complaints:
            print("#  ", complaint)
        failed += bool(complaints)
    print(f"1..{len(chosen)}")
    return failed > 0


if __name__ == "__main__":
    sys.exit(main())
