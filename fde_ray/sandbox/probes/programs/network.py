"""Ways out of a pod by the network. Each sends the job's nonce, so that a decoy can tell."""

from __future__ import annotations

import fcntl
import os
import re
import socket
import struct
import time
from typing import Any

from .syscalls import NEWUSER, Job, call

_TIMEOUT_S = 2.0
_TRIES = 2
_NONCE = re.compile(rb"fdeprobe[0-9a-f]{6}")
_SIOCADDRT, _SIOCSIFADDR = 0x890B, 0x8916


def tcp(job: Job) -> str:
    """Connect and send a request; `source_port` binds the near end first."""
    host, port = job["target"]
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as sock:
        sock.settimeout(_TIMEOUT_S)
        if job.get("source_port"):
            sock.bind(("::" if ":" in host else "0.0.0.0", job["source_port"]))
        sock.connect((host, port))
        sock.sendall(f"GET /{job['nonce']} HTTP/1.0\r\n\r\n".encode())
        return f"connected to {host} port {port}"


def udp(job: Job) -> str:
    """Send a datagram and wait for the answer."""
    host, port = job["target"]
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_DGRAM) as sock:
        answer = _asked(sock, job["nonce"].encode(), (host, port))
    return f"{len(answer)} bytes came back from {host} port {port}"


def udp_v6(job: Job) -> str:
    """Send a datagram by IPv6; where there is no way, make one over the node's end of the link."""
    host, port = job["target"]
    with socket.socket(socket.AF_INET6, socket.SOCK_DGRAM) as sock:
        try:
            sock.sendto(job["nonce"].encode(), (host, port))
        except OSError:
            index = next(index for index, name in socket.if_nameindex() if name != "lo")
            _add_way(sock, host, index)
            sock.sendto(job["nonce"].encode(), (host, port))
    return "a datagram was taken"


def _add_way(sock: socket.socket, host: str, index: int) -> None:
    own = socket.inet_pton(socket.AF_INET6, "fd00:fde::2")
    fcntl.ioctl(sock, _SIOCSIFADDR, own + struct.pack("=Ii", 64, index))
    time.sleep(_TIMEOUT_S)  # until the address is known to be nobody else's
    target = socket.inet_pton(socket.AF_INET6, host)
    gateway = socket.inet_pton(socket.AF_INET6, _neighbours(index)[0])
    way = struct.pack("@16s16s16sIHHILIi", target, bytes(16), gateway, 0, 128, 0, 1, 0, 3, index)
    fcntl.ioctl(sock, _SIOCADDRT, way)


def ping(job: Job) -> str:
    """Send an echo request through the socket that needs no privilege."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM, socket.IPPROTO_ICMP) as sock:
        answer = _asked(sock, _echo_request(job["nonce"]), (job["target"][0], 0))
    return f"{len(answer)} bytes came back"


def raw(job: Job) -> str:
    """Send an echo request made by hand."""
    with socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_ICMP) as sock:
        answer = _asked(sock, _echo_request(job["nonce"]), (job["target"][0], 0))
    return f"{len(answer)} bytes came back"


def raw_in_user_namespace(job: Job) -> str:
    """Be root, of a user namespace if need be; that a packet was taken counts as success."""
    if os.getuid():
        call("unshare", NEWUSER)
    with socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_ICMP) as sock:
        sock.settimeout(_TIMEOUT_S)
        sock.sendto(_echo_request(job["nonce"]), (job["target"][0], 0))
    return "a raw socket took the packet"


def packet(job: Job) -> str:
    """Put a frame on the link itself, past the stack."""
    with socket.socket(socket.AF_PACKET, socket.SOCK_DGRAM, socket.htons(0x0800)) as sock:
        name = next(name for _, name in socket.if_nameindex() if name != "lo")
        sock.sendto(_datagram(job), (name, 0x0800, 0, 0, b"\xff" * 6))
    return f"a frame went out of {name}"


def spoofed(job: Job) -> str:
    """Send a datagram under the address of another pod, header and all."""
    with socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_RAW) as sock:
        sock.sendto(_datagram(job), (job["target"][0], 0))
    return "a packet with a false sender was taken"


def domain_name(job: Job) -> str:
    """Ask a name server for a name of the cluster; `tcp` asks over a connection."""
    question = _question(job.get("name", "kubernetes.default.svc.cluster.local"))
    if job.get("tcp"):
        with socket.create_connection(tuple(job["target"]), timeout=_TIMEOUT_S) as sock:
            sock.sendall(struct.pack(">H", len(question)) + question)
            answer = sock.recv(512)[2:]
    else:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
            answer = _asked(sock, question, tuple(job["target"]))
    if answer[:2] != question[:2]:
        raise ValueError("the answer is to another question")
    return f"a name server answered with {len(answer)} bytes"


def resolver(job: Job) -> str:
    """Ask the pod's own resolver; a name that carries data is how a tunnel begins."""
    name = job.get("name", "kubernetes.default.svc.cluster.local")
    return str(socket.getaddrinfo(name, 80)[0][4][0])


def tunnel(job: Job) -> str:
    """Carry data out in the labels of a question to a name server of one's own."""
    data = os.urandom(24).hex()
    question = _question(f"{job['nonce']}.{data}.tunnel.example")
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        answer = _asked(sock, question, tuple(job["target"]))
    return f"{len(answer)} bytes came back through the tunnel"


def link_local(job: Job) -> str:
    """Connect to the node's end of the pod's link over IPv6, which needs no address of its own."""
    index, name = next(pair for pair in socket.if_nameindex() if pair[1] != "lo")
    for address in _neighbours(index):
        with socket.socket(socket.AF_INET6, socket.SOCK_STREAM) as sock:
            sock.settimeout(_TIMEOUT_S)
            sock.connect((address, job["target"][1], 0, index))
            sock.sendall(f"GET /{job['nonce']} HTTP/1.0\r\n\r\n".encode())
            return f"connected to {address} on {name}"
    raise OSError("nobody answers to IPv6 on the link")


def _neighbours(index: int) -> list[str]:
    """Return the link-local addresses that answer a ping of all nodes on the link."""
    echo = struct.pack(">BBHHH", 128, 0, 0, 1, 1) + b"fde-ray"
    found = []
    with socket.socket(socket.AF_INET6, socket.SOCK_DGRAM, socket.IPPROTO_ICMPV6) as sock:
        sock.settimeout(_TIMEOUT_S)
        sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_MULTICAST_LOOP, 0)
        own = _own_v6()
        sock.sendto(echo, ("ff02::1", 0, 0, index))
        try:
            while True:
                _, sender = sock.recvfrom(2048)
                address = str(sender[0]).partition("%")[0]
                if address not in own:
                    found.append(address)
        except TimeoutError:
            return found


def _own_v6() -> set[str]:
    with open("/proc/net/if_inet6", encoding="ascii") as file:
        words = [bytes.fromhex(line.split()[0]) for line in file]
    return {socket.inet_ntop(socket.AF_INET6, word) for word in words}


def _asked(sock: socket.socket, message: bytes, target: tuple[Any, ...]) -> bytes:
    sock.settimeout(_TIMEOUT_S)
    word = _NONCE.search(message)
    for _ in range(_TRIES):
        sock.sendto(message, target)
        try:
            answer = sock.recv(2048)
            # A raw socket hears the answers to others, too.
            while word is not None and word.group() not in answer:
                answer = sock.recv(2048)
        except TimeoutError:
            continue
        return answer
    raise TimeoutError("no answer")


def _echo_request(nonce: str) -> bytes:
    body = nonce.encode()
    head = struct.pack(">BBHHH", 8, 0, 0, os.getpid() & 0xFFFF, 1)
    return struct.pack(">BBHHH", 8, 0, _checksum(head + body), os.getpid() & 0xFFFF, 1) + body


def _datagram(job: Job) -> bytes:
    """An IPv4 packet with a UDP datagram in it; its sender is `source`, if that is given."""
    host, port = job["target"]
    body = struct.pack(">HHHH", 40000, port, 8 + len(job["nonce"]), 0) + job["nonce"].encode()
    source = socket.inet_aton(job.get("source", "192.0.2.77"))
    head = struct.pack(
        ">BBHHHBBH4s4s", 0x45, 0, 20 + len(body), 1, 0, 64, 17, 0, source, socket.inet_aton(host)
    )
    packet: bytes = head[:10] + struct.pack(">H", _checksum(head)) + head[12:] + body
    return packet


def _question(name: str) -> bytes:
    labels = b"".join(bytes([len(part)]) + part.encode() for part in name.split("."))
    return struct.pack(">HHHHHH", os.getpid() & 0xFFFF, 0x0100, 1, 0, 0, 0) + labels + b"\0\0\1\0\1"


def _checksum(data: bytes) -> int:
    padded = data + b"\0" * (len(data) % 2)
    total = sum(struct.unpack(f">{len(padded) // 2}H", padded))
    total = (total >> 16) + (total & 0xFFFF)
    return ~int(total + (total >> 16)) & 0xFFFF
