"""Answers over HTTP as they come off the wire, in pieces of any size; and those that are none."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from redrive.receipts._http import HEAD_LIMIT, CutOff, Garbled, Reply

LIMIT = 1_000
CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"


def read(*pieces: bytes, limit: int = LIMIT, closed: bool = False) -> Reply:
    reply = Reply(limit, lambda _: False)
    for piece in pieces:
        reply.feed(piece)
    if closed:
        reply.ended(None)
    return reply


SOUND = [
    (b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nhi", 200, b"hi", True),
    (b"HTTP/1.1 200\r\ncontent-length:2\r\n\r\nhi", 200, b"hi", True),
    (b"HTTP/1.1 500 No\r\nContent-Length: 0\r\n\r\n", 500, b"", True),
    (b"HTTP/1.1 204 No Content\r\n\r\n", 204, b"", True),
    (b"HTTP/1.1 304 Not Modified\r\nContent-Length: 5\r\n\r\n", 304, b"", True),
    (b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early\r\nA: b\r\n\r\nHTTP/1.1 204 x\r\n\r\n", 204, b"", True),
    (b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 2\r\n\r\nhi", 200, b"hi", False),
    (b"HTTP/1.0 200 OK\r\nContent-Length: 2\r\n\r\nhi", 200, b"hi", False),
    (b"HTTP/1.0 200 OK\r\nConnection: Keep-Alive\r\nContent-Length: 2\r\n\r\nhi", 200, b"hi", True),
    (CHUNKED + b"2\r\nhi\r\n0\r\n\r\n", 200, b"hi", True),
    (CHUNKED + b'1;name="value"\r\nh\r\n00001\r\ni\r\n0\r\nTrailer: x\r\n\r\n', 200, b"hi", True),
]


@pytest.mark.parametrize(("sent", "status", "body", "reusable"), SOUND)
def test_an_answer_in_one_piece_and_byte_by_byte(sent: bytes, status: int, body: bytes, reusable: bool) -> None:
    single = [sent[n : n + 1] for n in range(len(sent))]
    for pieces in ([sent], single):
        before = read(*pieces[:-1])
        assert not before.done
        before.feed(pieces[-1])
        assert (before.done, before.status, before.body, before.reusable) == (True, status, body, reusable)


def test_until_the_end_where_no_length_is_given() -> None:
    reply = read(b"HTTP/1.1 200 OK\r\n\r\nhi", b" there")
    assert not reply.done
    reply.ended(None)
    assert (reply.done, reply.body, reply.reusable) == (True, b"hi there", False)


@given(st.binary(max_size=300), st.lists(st.integers(1, 40), max_size=20), st.randoms(use_true_random=False))
@settings(max_examples=60, deadline=None)
def test_chunks_of_any_size_in_pieces_of_any_size(body: bytes, sizes: list[int], random: Random) -> None:
    sent, rest = CHUNKED, body
    for size in sizes:
        if rest:
            sent += b"%x\r\n%s\r\n" % (len(rest[:size]), rest[:size])
            rest = rest[size:]
    sent += (b"%X\r\n%s\r\n" % (len(rest), rest) if rest else b"") + b"0\r\n\r\n"
    reply = Reply(LIMIT, lambda _: False)
    while sent:
        size = random.randint(1, 50)
        reply.feed(sent[:size])
        sent = sent[size:]
    assert (reply.done, reply.body, reply.reusable) == (True, body, True)


def test_headers_have_one_spelling_and_are_joined() -> None:
    sent = b"HTTP/1.1 429 Slow\r\nRETRY-after: \t7 \r\nx: a\r\nX: b\r\nempty:\r\nContent-Length: 0\r\n\r\n"
    reply = read(sent)
    assert reply.headers == {"Retry-After": "7", "X": "a, b", "Empty": "", "Content-Length": "0"}


@pytest.mark.parametrize(
    "sent",
    [
        b"SSH-2.0-OpenSSH_9.6\r\n\r\n",
        b"HTTP/2 200\r\n\r\n",
        b"HTTP/1.1 2000 OK\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nno header\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nname : value\r\n\r\n",
        b"HTTP/1.1 200 OK\r\n: value\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nA: b\r\n folded\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nA: b\rB: c\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nA: \0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: +1\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: \xb2\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nab",
        CHUNKED[:-2] + b"Content-Length: 9\r\n\r\n2\r\nhi\r\n0\r\n\r\n",
        b"HTTP/1.1 101 Switching Protocols\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nA: " + b"x" * HEAD_LIMIT,
        b"HTTP/1.1 100 Continue\r\n\r\n" * 4_000,
    ],
)
def test_what_is_no_answer_of_a_web_server(sent: bytes) -> None:
    with pytest.raises(Garbled):
        read(sent)


@pytest.mark.parametrize(
    "sent",
    [
        b"x\r\n",
        b"-1\r\n",
        b"0x2\r\nhi\r\n",
        b"2\r\nhi!\r\n0\r\n\r\n",
        b"2\r\nhi0\r\n\r\n",
        b"1" * (5_000),
        b"0\r\n" + b"A: b\r\n" * 20_000,
        b"1;" + b"x" * 100_000,
        b"1\r\nh\r\n" * 15 + b"0\r\nA: " + b"x" * 100_000,
    ],
)
def test_chunks_that_are_none_or_do_not_end(sent: bytes) -> None:
    with pytest.raises(CutOff):
        read(CHUNKED + sent)


@pytest.mark.parametrize(
    "sent",
    [
        b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nhi",
        CHUNKED + b"2\r\nhi\r\n",
        CHUNKED + b"2\r\nhi\r\n0\r\n",
    ],
)
def test_an_end_in_the_middle_is_told_from_none_at_all(sent: bytes) -> None:
    with pytest.raises(CutOff):
        read(sent, closed=True)
    for before in (b"", sent[:20]):
        with pytest.raises(ConnectionResetError, match="without an answer"):
            read(before, closed=True)


def test_what_is_packed_on_its_way_is_not_unpacked() -> None:
    with pytest.raises(CutOff, match="'gzip, chunked', unasked"):
        read(CHUNKED.replace(b"chunked", b"gzip, chunked"))


def test_a_break_is_no_end() -> None:
    reply = read(b"HTTP/1.1 200 OK\r\n\r\nhi")
    with pytest.raises(CutOff):
        reply.ended(ConnectionResetError("reset"))
    with pytest.raises(BrokenPipeError):
        Reply(LIMIT, lambda _: False).ended(BrokenPipeError())


@pytest.mark.parametrize(
    "head", [b"HTTP/1.1 200 OK\r\n\r\n", b"HTTP/1.1 200 OK\r\nContent-Length: 99\r\n\r\n", CHUNKED]
)
def test_no_more_than_the_limit_is_read(head: bytes) -> None:
    body = b"50\r\n" + b"x" * 80 if head is CHUNKED else b"x" * 80
    reply = read(head + body, limit=10)
    assert (reply.done, reply.body, reply.reusable) == (True, b"x" * 10, False)


def test_whoever_says_more_than_he_announced_is_not_asked_again() -> None:
    assert not read(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nhi!").reusable
    assert not read(b"HTTP/1.1 204 No\r\n\r\n", b"!").reusable


def test_a_body_is_read_until_it_is_enough() -> None:
    reply = Reply(LIMIT, lambda so_far: b"!" in so_far.body)
    reply.feed(CHUNKED + b"2\r\nhi\r\n")
    assert not reply.done
    reply.feed(b"9\r\nho!")
    assert (reply.done, reply.body, reply.reusable) == (True, b"hiho!", False)
