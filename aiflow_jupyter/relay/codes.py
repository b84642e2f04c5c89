"""The codes of the relay and of its two ends: stable, one meaning each."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

CODES: Final[Mapping[str, str]] = MappingProxyType(
    {
        "AF900": "a relayed stream is not whole",
        "AF901": "the limits of a stream can't work",
        "AF902": "something was to follow the end of a stream",
        "AF903": "a stream has as many frames as it may have",
        "AF904": "a relay's address is none",
        "AF910": "the relay was not reached in time",
        "AF911": "the relay does not know the capability or the key, or it has expired",
        "AF912": "the capability is for another channel or the other role",
        "AF913": "another process holds this role of the channel",
        "AF914": "the channel is finished or has expired",
        "AF915": "a limit of the relay was met",
        "AF916": "the relay, or something on the way to it, answered with what the protocol does not know",
        "AF917": "the relay is on another machine and has no TLS",
        "AF920": "a message is no frame for this end",
        "AF921": "a frame was changed on the way, or is of another channel, epoch or key",
        "AF922": "a frame is of another version of the protocol",
        "AF923": "a second process produces the stream, such as a job that was started twice",
        "AF924": "a second process consumes the stream, such as a restarted kernel",
        "AF925": "a frame contradicts what this end sent or received: a defect of the other end",
        "AF926": "a value can't travel: it is no plain data, nests too deeply or is too large",
        "AF930": "the stream stopped before its end: what arrived is a part",
        "AF931": "the other end has been silent for too long",
        "AF932": "the other end is alive, and what it sends does not get through",
        "AF933": "everything was sent, and the last acknowledgement did not come",
        "AF934": "the stream was cancelled before it was complete",
        "AF935": "the producer ended the stream with an error of its own",
        "AF936": "the other end did not join in time",
        "AF940": "a key is missing, malformed, open to other users or of a kind that can't be used here",
        "AF941": "a sealed request can't be opened with this key",
        "AF950": "the relay wants a key, and this is none",
        "AF951": "the relay gave out no such capability, or the key that opened its channel was revoked",
        "AF952": "a capability has expired",
        "AF953": "a capability is for another place, or the metrics are not for you",
        "AF954": "a third party took part in a channel, which is closed",
        "AF955": "a channel is finished and never used again",
        "AF956": "a rate or a number that a key may have is used up for now",
        "AF957": "the relay goes away",
        "AF958": "the relay is full or busy",
        "AF960": "there is nothing at this path of the relay",
        "AF961": "this path of the relay takes another method",
        "AF962": "this path of the relay takes a WebSocket only",
        "AF963": "a request or a handshake makes no sense",
        "AF964": "a request is of another version of HTTP",
        "AF965": "the headers of a request are too large",
        "AF966": "the body of a request is too large",
        "AF967": "a request did not come in time",
        "AF968": "the relay can't read its file of keys",
        "AF970": "the relay's secret file is empty or damaged",
        "AF971": "a private file, or its folder, can't be used",
        "AF972": "a relay key is named wrongly, or the file of keys is none",
        "AF973": "a setting of a relay can't work",
    }
)
"""What each code says."""
