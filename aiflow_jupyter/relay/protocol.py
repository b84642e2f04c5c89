"""The two ends of a stream as state machines without I/O: messages and times in, messages out.

                 attach: OPEN                    OPEN of the consumer, or a STATE
    PRODUCER  ┌──────────────┐  ────────────────────────────────────────────────▶  ┌──────────────────────┐
              │ HOLD         │                                                     │ IN STEP              │
              │ seals nothing│  ◀────────────────────────────────────────────────  │ seals within credit, │
              └──────────────┘   detach, or the hint "alone"                       │ beats when quiet     │
                     │ silence > linger                                            └──────────────────────┘
                     ▼                                               end, or STATE(cancel): END    │ STATE acks END
                  PeerLost                                                                         ▼
                                                                                                 over

                 attach: OPEN             OPEN of the producer: STATE
    CONSUMER  ┌──────────────┐  ──────────────────────────────────▶  ┌──────────────────────────────────────────┐
              │ ALONE        │                                       │ JOINED                                   │
              │ OPEN each    │            seq < next: dropped        │ seq = next and the tag holds: delivered  │
              │ second       │            seq > next: STATE(resend)  │ BEAT: STATE; a quarter window: STATE     │
              └──────────────┘                                       └──────────────────────────────────────────┘
                                           silence > lost: PeerLost     │ END agrees with all before it: STATE(finished)
                                           a tag fails: FrameAltered    ▼
                                                                      over

An end that has failed raises the same error from then on (`error`); values that arrived before can still be taken. What
is delivered is always a beginning of what was sent, and `over` on the consumer's side means all of it. `PROTOCOL.md`
has the layouts, the reasons and the argument why that holds against a hostile relay.
"""

from aiflow_jupyter.relay.consumer import Consumer
from aiflow_jupyter.relay.producer import Producer, pack
from aiflow_jupyter.relay.session import DEFAULT_LIMITS, StreamLimits

__all__ = ["DEFAULT_LIMITS", "Consumer", "Producer", "StreamLimits", "pack"]
