"""Messages over real sockets: cut, joined, closed and foreign ones."""

import os
import socket
import struct
import threading

import pytest

from contracts.sampling import SamplingParams
from python_backend.channel import SPIN_S, FrameChannel, PacketChannel, PeerLost, ProtocolError
from python_backend.messages import (
    AttachWorker,
    BridgeToWorker,
    CancelGenerate,
    Generate,
    NodeToWorker,
    StopWorker,
)

pytestmark = pytest.mark.integration


@pytest.fixture
def frames():
    left, right = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    yield FrameChannel(left, BridgeToWorker), FrameChannel(right, BridgeToWorker)
    left.close()
    right.close()


@pytest.fixture
def packets():
    left, right = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    yield PacketChannel(left, NodeToWorker), PacketChannel(right, NodeToWorker)
    left.close()
    right.close()


def test_a_message_in_single_bytes_arrives_whole(frames):
    """No receive returns half a message, and none is lost."""
    sender, receiver = frames
    message = Generate(7, "the tide", SamplingParams(stop=("x",)), 1.5)
    sender.send(message)
    data = receiver.sock.recv(1000)
    received = []
    for byte in data:
        sender.sock.sendall(bytes([byte]))
        received += receiver.receive()
    assert received == [message]


def test_messages_that_arrive_together_come_apart(frames):
    """Three in one read."""
    sender, receiver = frames
    for number in range(3):
        sender.send(CancelGenerate(number))
    assert receiver.receive() == [CancelGenerate(0), CancelGenerate(1), CancelGenerate(2)]


def test_a_closed_peer_is_peer_lost_and_never_an_empty_message(frames):
    """Both ways."""
    sender, receiver = frames
    receiver.sock.close()
    with pytest.raises(PeerLost):
        sender.send(CancelGenerate(1))
    with pytest.raises(PeerLost):
        sender.receive()


def test_a_frame_that_announces_too_much_is_refused_before_it_is_read(frames):
    """4 GiB announced."""
    sender, receiver = frames
    sender.sock.sendall(struct.pack("<I", 0xFFFF_FFFF))
    with pytest.raises(ProtocolError, match="at most"):
        receiver.receive()


def test_what_is_no_message_is_a_protocol_error(frames):
    """Garbage of the right length."""
    sender, receiver = frames
    sender.sock.sendall(struct.pack("<I", 3) + b"\xc1\xc1\xc1")
    with pytest.raises(ProtocolError):
        receiver.receive()


def test_descriptors_ride_along_and_belong_to_the_receiver(packets):
    """A pipe's write end, used on the other side."""
    sender, receiver = packets
    read_end, write_end = os.pipe()
    sender.send(AttachWorker("chat-0", 3), [write_end, read_end])
    os.close(write_end)
    message, fds = receiver.receive()

    assert message == AttachWorker("chat-0", 3)
    os.write(fds[0], b"tide")
    assert os.read(read_end, 4) == b"tide"
    for fd in (*fds, read_end):
        os.close(fd)


def test_a_foreign_packet_is_refused_and_its_descriptors_are_closed(packets):
    """Nothing leaks from a peer that talks nonsense."""
    sender, receiver = packets
    before = len(os.listdir("/proc/self/fd"))
    with open("/dev/null") as file:
        socket.send_fds(sender.sock, [b"\xc1"], [file.fileno()])
        with pytest.raises(ProtocolError):
            receiver.receive()
    assert len(os.listdir("/proc/self/fd")) == before


def test_an_ended_packet_peer_is_peer_lost(packets):
    """EOF is how the node learns of a death."""
    sender, receiver = packets
    sender.send(StopWorker())
    sender.close()
    assert receiver.receive()[0] == StopWorker()
    with pytest.raises(PeerLost):
        receiver.receive()


def test_an_answer_that_is_due_soon_is_waited_for_awake_and_then_asleep(packets):
    """There already; later than anybody spins; never: then the channel blocks as before, it was only this wait."""
    sender, receiver = packets
    sender.send(StopWorker())
    assert receiver.receive_soon(5.0) == (StopWorker(), [])
    late = threading.Timer(20 * SPIN_S, sender.send, [StopWorker()])
    late.start()
    assert receiver.receive_soon(5.0) == (StopWorker(), [])
    late.join()
    with pytest.raises(TimeoutError):
        receiver.receive_soon(2 * SPIN_S)
    assert receiver.sock.gettimeout() is None


def test_a_peer_that_goes_while_its_answer_is_waited_for_is_peer_lost(packets):
    """Not an empty message, awake or asleep."""
    sender, receiver = packets
    sender.close()
    with pytest.raises(PeerLost):
        receiver.receive_soon(5.0)
