"""What can go wrong between the two ends of a stream, each with a code and what mends it.

`AF90x` the family and settings, `AF91x` the way to the relay, `AF92x` what came is not what the other end sent,
`AF93x` the stream did not come to its end, `AF94x` keys and sealed requests. No message holds a key, a capability, a
join token or anything of the stream's content.
"""

from __future__ import annotations

from aiflow_jupyter.errors import AiflowError


class RelayError(AiflowError):
    """Anything that keeps a relayed stream from being whole."""

    code = "AF900"


class RelayUnreachable(RelayError):
    """No connection to the relay before the deadline; `retry_after` seconds is what a full relay asked for."""

    code = "AF910"
    retry_after: float = 0.0


class CapabilityRefused(RelayError):
    """The relay does not know the capability or key, or it has expired (HTTP 401)."""

    code = "AF911"


class WrongChannel(RelayError):
    """The capability belongs to another channel or role (HTTP 403)."""

    code = "AF912"


class Crowded(RelayError):
    """Another process holds this role of the channel (HTTP 409)."""

    code = "AF913"


class ChannelFinished(RelayError):
    """The channel is finished or expired and is never used again (HTTP 410, close 4010 and 4012)."""

    code = "AF914"


class RelayLimit(RelayError):
    """A limit of the relay was met (HTTP 429, close 1009); `retry_after` seconds is what it asked for, if it did."""

    code = "AF915"
    retry_after: float = 0.0


class RelayRefused(RelayError):
    """The relay, or something on the way to it, answered with what the protocol does not know."""

    code = "AF916"


class PlainRefused(RelayError):
    """A relay without TLS on another machine: its capabilities could be read on the way."""

    code = "AF917"


class FrameError(RelayError):
    """A message that is no frame for this end: malformed, too long, or of the wrong direction."""

    code = "AF920"


class FrameAltered(RelayError):
    """A frame whose tag does not hold: changed on the way, from another channel or epoch, or under another key."""

    code = "AF921"


class VersionMismatch(RelayError):
    """A frame of another version of the protocol."""

    code = "AF922"


class SecondProducer(RelayError):
    """A second producing process, such as a job started twice: its stream can't go on where the first one's was."""

    code = "AF923"


class SecondConsumer(RelayError):
    """A second consuming process, such as a restarted kernel: it can't continue the first one's stream."""

    code = "AF924"


class StateError(RelayError):
    """An authentic frame that contradicts what this end sent or received: a defect of the other end."""

    code = "AF925"


class ValueRefused(RelayError):
    """A value that does not travel: not plain msgpack data, nested too deeply, or too large."""

    code = "AF926"


class StreamIncomplete(RelayError):
    """The stream stopped before its END: what arrived is a part."""

    code = "AF930"


class PeerLost(RelayError):
    """The other end was there and has been silent for too long."""

    code = "AF931"


class StreamStalled(RelayError):
    """The other end is alive, yet what it sends does not get through."""

    code = "AF932"


class DeliveryUnknown(RelayError):
    """Everything was sent, but the consumer's last acknowledgement did not come."""

    code = "AF933"


class StreamCancelled(RelayError):
    """The stream was cancelled before it was complete."""

    code = "AF934"


class RemoteFailure(RelayError):
    """The producer ended the stream with an error; its message is the producer's own."""

    code = "AF935"


class NoPeer(RelayError):
    """The other end did not join in time."""

    code = "AF936"


class KeyUnusable(RelayError):
    """A key that is missing, malformed, open to other users, or of a kind this installation can't use."""

    code = "AF940"


class RequestUnreadable(RelayError):
    """A sealed request that this key can't open: for another key or purpose, or changed on the way."""

    code = "AF941"
