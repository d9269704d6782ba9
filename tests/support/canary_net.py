"""`unshare -nm python -m tests.support.canary_net`: a network of its own, in which every address is a canary.

Each address of S1 is put on the loopback interface, and a server listens on all of them. A stub of a DNS server answers
otherwise each time. Reports which connections were accepted, and on which address.
"""

from __future__ import annotations

import asyncio
import ipaddress
import json
import socket
import struct
import subprocess
import sys
import tempfile
from collections import Counter

from redrive.errors import TargetDenied
from redrive.net.guard import Guard
from redrive.net.http import HttpClient, HttpError

PORT = 8080
ANSWERS: dict[str, list[list[str]]] = {
    # By name: what is answered the first time, the second time and so on, and then again from the start.
    "rebound.example": [["8.8.8.8"], ["127.0.0.1"], ["8.8.8.8"], ["10.0.0.1"]],
    "mixed.example": [["8.8.8.8", "10.0.0.1"], ["10.0.0.1", "8.8.8.8"]],
    "both.example": [["8.8.8.8", "::1"], ["8.8.8.8", "fd00::1"]],
    "chain.example": [["inner.example"]],
    "inner.example": [["169.254.169.254"]],
    "public.example": [["8.8.8.8"]],
}
DELIVERIES = 2_000


class Canary:
    """`hits`: how often a connection was accepted on each address; `lookups`: how often each name was asked for."""

    def __init__(self) -> None:
        self.hits: Counter[str] = Counter()
        self.lookups: Counter[str] = Counter()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.hits[writer.get_extra_info("sockname")[0].partition("%")[0]] += 1
        try:
            for last in (b"", b"Connection: close\r\n"):  # a connection rests, and is used again once
                await reader.readuntil(b"\r\n\r\n")
                await reader.readexactly(2)
                writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n%b\r\n" % last)
        except asyncio.IncompleteReadError:
            pass
        finally:
            writer.close()

    async def post(self, client: HttpClient, host: str) -> str:
        """ "" for an answer."""
        name = f"[{host}]" if ":" in host else host
        try:
            await client.post(f"http://{name}:{PORT}/", b"{}", {}, within=2_000, limit=100)
        except TargetDenied:
            return "denied"
        except HttpError as error:
            return str(error)
        return ""


class Names(asyncio.DatagramProtocol):
    """Answers A and AAAA, with a time to live of 0. A name in place of an address is a CNAME."""

    def __init__(self, canary: Canary) -> None:
        self._canary = canary
        self._turn: Counter[str] = Counter()

    def connection_made(self, transport: asyncio.DatagramTransport) -> None:  # type: ignore[override]
        self._transport = transport

    def datagram_received(self, data: bytes, address: tuple[str, int]) -> None:
        labels, at = [], 12
        while data[at]:
            labels.append(data[at + 1 : at + 1 + data[at]].decode())
            at += 1 + data[at]
        asked, name = data[12 : at + 5], ".".join(labels).lower()
        (kind,) = struct.unpack("!H", data[at + 1 : at + 3])
        given = ANSWERS.get(name, [[]])
        # Both kinds are asked for by one lookup: the second of them has the same turn.
        nth = self._turn[name] // 2 % len(given)
        self._turn[name] += 1
        self._canary.lookups[name] += kind == 1
        records = self._records(b"\xc0\x0c", given[nth], kind)
        head = data[:2] + struct.pack("!HHHHH", 0x8580, 1, len(records), 0, 0)
        self._transport.sendto(head + asked + b"".join(records), address)

    def _records(self, owner: bytes, given: list[str], kind: int) -> list[bytes]:
        found = []
        for each in given:
            if each in ANSWERS:
                target = b"".join(bytes([len(part)]) + part.encode() for part in each.split(".")) + b"\0"
                found.append(owner + struct.pack("!HHIH", 5, 1, 0, len(target)) + target)
                found += self._records(target, ANSWERS[each][0], kind)
                continue
            packed = ipaddress.ip_address(each).packed
            if (len(packed) == 4) == (kind == 1):
                found.append(owner + struct.pack("!HHIH", kind, 1, 0, len(packed)) + packed)
        return found


def build(addresses: list[str]) -> None:
    """The interface, and a resolver that asks the stub."""
    lines = "".join(
        f"addr add {each}/{128 if ':' in each else 32} dev lo{' nodad' if ':' in each else ''}\n" for each in addresses
    )
    with tempfile.NamedTemporaryFile("w", suffix=".conf") as conf:
        conf.write("nameserver 127.0.0.1\noptions timeout:1 attempts:1\n")
        conf.flush()
        subprocess.run(["mount", "--bind", conf.name, "/etc/resolv.conf"], check=True)
    subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
    subprocess.run(["ip", "-force", "-batch", "-"], input=lines, text=True, check=False, capture_output=True)


async def main(addresses: list[str]) -> dict[str, object]:
    canary = Canary()
    for host, family in (("0.0.0.0", socket.AF_INET), ("::", socket.AF_INET6)):  # noqa: S104 - in a network of its own
        await asyncio.start_server(canary.serve, host, PORT, family=family)
    await asyncio.get_running_loop().create_datagram_endpoint(lambda: Names(canary), local_addr=("127.0.0.1", 53))
    bare, guarded = HttpClient(), HttpClient(guard=Guard())
    await bare.open()
    await guarded.open()
    try:
        reached = [each for each in addresses if await canary.post(bare, each) == ""]
        passed = [each for each in addresses if await canary.post(guarded, each) == ""]
        canary.hits.clear()
        said: dict[str, Counter[str]] = {name: Counter() for name in ANSWERS}
        for number in range(DELIVERIES):
            name = list(ANSWERS)[number % len(ANSWERS)]
            said[name][await canary.post(guarded, name)] += 1
    finally:
        await bare.close()
        await guarded.close()
    return {"reached": reached, "passed": passed, "hits": canary.hits, "said": said, "lookups": canary.lookups}


if __name__ == "__main__":
    given = json.loads(sys.argv[1])
    build(given)
    sys.stdout.write(json.dumps(asyncio.run(main(given))))
