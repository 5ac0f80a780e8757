"""Connections of servers: how what they write reaches a client."""

import asyncio
import socket

from cube.listening import GATHERED, GatheredTransport, listen


class Written(asyncio.Transport):
    """A transport that keeps what it is given, piece by piece."""

    def __init__(self):
        super().__init__()
        self.pieces, self.closed = [], False

    def write(self, data):
        self.pieces.append(data)

    def is_closing(self):
        return self.closed

    def close(self):
        self.closed = True


def test_connections_do_not_wait_for_acknowledgements():
    with (
        listen("127.0.0.1", 0) as listener,
        socket.create_connection(listener.getsockname()),
        listener.accept()[0] as accepted,
    ):
        assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)


def test_what_is_written_in_one_turn_of_the_loop_is_sent_as_one_piece():
    async def run():
        plain = Written()
        gathered = GatheredTransport(plain, asyncio.get_running_loop())
        gathered.write(b"head ")
        gathered.write(b"")
        gathered.write(b"body")
        assert plain.pieces == []
        await asyncio.sleep(0)
        assert plain.pieces == [b"head body"]
        gathered.write(bytes(GATHERED + 1))
        assert len(plain.pieces) == 2
        gathered.write(b"last")
        gathered.close()
        assert (plain.pieces[-1], plain.closed) == (b"last", True)
        gathered.write(b"too late")
        await asyncio.sleep(0)
        assert len(plain.pieces) == 3

    asyncio.run(run())
