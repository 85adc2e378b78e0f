"""Messages between the device and its compiling process: a length of 8 bytes, then so many bytes."""

from __future__ import annotations

from typing import IO


def send(pipe: IO[bytes] | None, message: bytes) -> None:
    assert pipe is not None
    pipe.write(len(message).to_bytes(8, "little") + message)
    pipe.flush()


def receive(pipe: IO[bytes] | None) -> bytes:
    """The next message.

    Raises:
        EOFError: the other side has closed the pipe.
    """
    assert pipe is not None
    head = pipe.read(8)
    if len(head) < 8:
        raise EOFError("the pipe was closed")
    size = int.from_bytes(head, "little")
    message = pipe.read(size)
    if len(message) < size:
        raise EOFError("the pipe was closed within a message")
    return message
