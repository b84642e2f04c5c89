"""A real kernel in a process of its own, spoken to over its own sockets.

`Kernel` is the smallest client with which a test can see *when* things arrive: every message is kept with its time of
arrival, requests go out on any channel or subshell without waiting for each other, and waiting is for a condition,
never for a while. One thread owns the sockets (ZeroMQ sockets belong to one thread); what it receives, any may read.
"""

from __future__ import annotations

import os
import queue
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Literal, Self

import zmq
from jupyter_client.manager import KernelManager

Channel = Literal["shell", "control", "stdin", "iopub"]

STARTUP: Final = 60.0
REPLY: Final = 30.0


class KernelDiedError(RuntimeError):
    """The kernel's process ended while a test waited for it; the message carries what it printed."""


@dataclass(frozen=True, slots=True)
class Message:
    """One message from the kernel.

    Attributes:
        arrived: `time.monotonic()` when it was taken off the socket.
        channel: the one it came on.
        type: its `msg_type`.
        content: what it says.
        parent: the id of the request that caused it, empty if none did.
        header: its own header.
        metadata: of the message.
        buffers: binary attachments.
    """

    arrived: float
    channel: Channel
    type: str
    content: dict[str, Any]
    parent: str
    header: dict[str, Any]
    metadata: dict[str, Any]
    buffers: tuple[bytes, ...]


@dataclass(frozen=True, slots=True)
class Ran:
    """A finished execution: the request's id, its reply, and everything published for it, in order of arrival."""

    id: str
    reply: Message
    published: tuple[Message, ...]

    @property
    def status(self) -> str:
        """`ok`, `error` or `aborted`."""
        return str(self.reply.content["status"])

    @property
    def error(self) -> str:
        """The name of the exception, empty if there was none."""
        return str(self.reply.content.get("ename", ""))

    @property
    def stdout(self) -> str:
        return self._stream("stdout")

    @property
    def stderr(self) -> str:
        return self._stream("stderr")

    @property
    def value(self) -> str | None:
        """The plain text of the cell's value."""
        results = [m.content["data"].get("text/plain") for m in self.published if m.type == "execute_result"]
        return results[-1] if results else None

    @property
    def displays(self) -> list[dict[str, Any]]:
        """The mime bundles that the cell displayed or returned."""
        return [m.content["data"] for m in self.published if m.type in ("display_data", "execute_result")]

    def _stream(self, name: str) -> str:
        return "".join(m.content["text"] for m in self.published if m.type == "stream" and m.content["name"] == name)


class Kernel:
    """One kernel, from its start to its end; a context manager.

    Args:
        name: of the kernelspec (`python3`, `aiflow`).
        python: run the spec's command with this interpreter instead of its own.
        env: additions to the environment of the kernel.
        cwd: the kernel's working folder.
    """

    def __init__(
        self,
        name: str = "python3",
        *,
        python: str | os.PathLike[str] | None = None,
        env: Mapping[str, str] | None = None,
        cwd: str | os.PathLike[str] | None = None,
    ) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="kernel-")
        home = Path(self._folder.name)
        self._log_path = home / "kernel.log"
        self._log = self._log_path.open("wb")
        self._manager = KernelManager(kernel_name=name, connection_file=str(home / "connection.json"))
        if python is not None:
            assert self._manager.kernel_spec is not None
            self._manager.kernel_spec.argv[0] = os.fspath(python)
        # The user's own start-up files and configuration are none of a test's business.
        self._env = {**os.environ, "IPYTHONDIR": str(home / "ipython"), **(env or {})}
        self._cwd = os.fspath(cwd) if cwd is not None else str(home)
        self._received: list[Message] = []
        self._news = threading.Condition()
        self._outbox: queue.SimpleQueue[tuple[Channel, dict[str, Any], Sequence[bytes]]] = queue.SimpleQueue()
        self._wake_read, self._wake_write = os.pipe()
        self._closing = False

        self._manager.start_kernel(env=self._env, cwd=self._cwd, stdout=self._log, stderr=self._log)
        self._session = self._manager.session
        self._thread = threading.Thread(target=self._converse, name="kernel sockets", daemon=True)
        self._thread.start()
        try:
            self._await_ready()
        except BaseException:
            self.close()
            raise

    # Running code

    def submit(
        self, code: str, *, subshell: str | None = None, silent: bool = False, stop_on_error: bool = True
    ) -> str:
        """Ask for an execution and return the request's id at once."""
        content = {
            "code": code,
            "silent": silent,
            "store_history": not silent,
            "user_expressions": {},
            "allow_stdin": False,
            "stop_on_error": stop_on_error,
        }
        return self.send("execute_request", content, subshell=subshell)

    def run(self, code: str, *, subshell: str | None = None, timeout: float = REPLY) -> Ran:
        """Run `code` and return its reply with all that it published."""
        return self.finished(self.submit(code, subshell=subshell), timeout)

    def finished(self, request: str, timeout: float = REPLY) -> Ran:
        """Wait until `request` has its reply and its last output."""
        reply = self.reply(request, timeout)
        self.wait_for(
            lambda m: m.type == "status" and m.parent == request and m.content["execution_state"] == "idle",
            timeout=timeout,
        )
        return Ran(request, reply, tuple(self.messages(parent=request, channel="iopub")))

    # Messages of any kind

    def send(
        self,
        type: str,  # noqa: A002 - the protocol's word
        content: Mapping[str, Any],
        *,
        channel: Channel = "shell",
        subshell: str | None = None,
        metadata: Mapping[str, Any] | None = None,
        buffers: Sequence[bytes] = (),
    ) -> str:
        """Send a message on any channel or subshell; returns its id at once."""
        message = self._session.msg(type, dict(content), metadata=dict(metadata or {}))
        if subshell is not None:
            message["header"]["subshell_id"] = subshell
        self._outbox.put((channel, message, buffers))
        os.write(self._wake_write, b"!")
        return str(message["header"]["msg_id"])

    def request(
        self,
        type: str,  # noqa: A002 - the protocol's word
        content: Mapping[str, Any] | None = None,
        *,
        channel: Channel = "shell",
        subshell: str | None = None,
        timeout: float = REPLY,
    ) -> Message:
        """Send a request and wait for its reply."""
        return self.reply(self.send(type, content or {}, channel=channel, subshell=subshell), timeout)

    def reply(self, request: str, timeout: float = REPLY) -> Message:
        """The reply to `request`, on whichever channel that went out."""
        return self.wait_for(lambda m: m.parent == request and m.channel in ("shell", "control"), timeout=timeout)

    def messages(
        self, *types: str, parent: str | None = None, since: float = 0.0, channel: Channel | None = None
    ) -> list[Message]:
        """What has arrived so far: of these types (none: all), for this request, since this moment."""
        with self._news:
            received = list(self._received)
        return [
            m
            for m in received
            if (not types or m.type in types)
            and (parent is None or m.parent == parent)
            and (channel is None or m.channel == channel)
            and m.arrived >= since
        ]

    def wait_for(self, wanted: Callable[[Message], bool], *, since: float = 0.0, timeout: float = REPLY) -> Message:
        """The first message that is `wanted`, among those that arrived since `since` and those still to come.

        Raises:
            TimeoutError: it did not arrive in `timeout` seconds.
            KernelDiedError: nor can it any more.
        """
        deadline = time.monotonic() + timeout
        seen = 0
        while True:
            with self._news:
                while len(self._received) == seen and (left := deadline - time.monotonic()) > 0:
                    if not self._news.wait(min(left, 0.5)) and not self.alive:
                        raise KernelDiedError(f"the kernel died:\n{self.log}")
                fresh = self._received[seen:]
            if not fresh:
                raise TimeoutError(f"no such message in {timeout:g} s; the kernel printed:\n{self.log}")
            for message in fresh:
                if message.arrived >= since and wanted(message):
                    return message
            seen += len(fresh)

    # Subshells

    def create_subshell(self) -> str:
        """Open a subshell and return its id."""
        return str(self.request("create_subshell_request", channel="control").content["subshell_id"])

    def delete_subshell(self, subshell: str) -> None:
        """Close a subshell."""
        message = self.send("delete_subshell_request", {"subshell_id": subshell}, channel="control")
        self.reply(message)

    # The process

    @property
    def alive(self) -> bool:
        return bool(self._manager.is_alive())

    @property
    def pid(self) -> int:
        assert self._manager.provisioner is not None
        return int(self._manager.provisioner.pid)

    @property
    def log(self) -> str:
        """What the kernel's process printed outside of any cell."""
        return self._log_path.read_text("utf-8", "replace")

    def interrupt(self) -> float:
        """Interrupt as a Stop button does; returns the moment at which it was sent."""
        now = time.monotonic()
        self._manager.interrupt_kernel()
        return now

    def restart(self) -> None:
        """End the process, start another on the same sockets, and wait until it answers."""
        self._manager.restart_kernel(now=True)
        self._await_ready()

    def kill(self) -> None:
        """End the process without a word, as an out-of-memory killer does."""
        self._manager.signal_kernel(9)
        deadline = time.monotonic() + REPLY
        while self.alive and time.monotonic() < deadline:
            time.sleep(0.01)

    def close(self) -> None:
        """End the process and everything of this object; safe to call twice."""
        if self._closing:
            return
        self._closing = True
        os.write(self._wake_write, b"!")
        self._thread.join(10)
        self._manager.shutdown_kernel(now=True)
        os.close(self._wake_read)
        os.close(self._wake_write)
        self._log.close()
        self._folder.cleanup()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def _await_ready(self) -> None:
        """Ask until an answer comes with its status: only then is the subscription to outputs known to hold."""
        deadline = time.monotonic() + STARTUP
        while True:
            since = time.monotonic()
            request = self.send("kernel_info_request", {})
            try:
                self.reply(request, deadline - since)
                self.wait_for(lambda m, request=request: m.type == "status" and m.parent == request, timeout=0.5)  # type: ignore[misc]
            except TimeoutError:
                if time.monotonic() > deadline:
                    raise
            else:
                return

    def _converse(self) -> None:
        """Own the sockets: send what is in the outbox, keep what arrives."""
        sockets: dict[Channel, zmq.Socket[bytes]] = {
            "shell": self._manager.connect_shell(),
            "control": self._manager.connect_control(),
            "stdin": self._manager.connect_stdin(),
            "iopub": self._manager.connect_iopub(),
        }
        channels = {socket: channel for channel, socket in sockets.items()}
        poller = zmq.Poller()
        poller.register(self._wake_read, zmq.POLLIN)
        for socket in channels:
            poller.register(socket, zmq.POLLIN)
        while not self._closing:
            for source, _ in poller.poll():
                if source == self._wake_read:
                    os.read(self._wake_read, 4096)
                    while not self._outbox.empty():
                        channel, message, buffers = self._outbox.get()
                        self._session.send(sockets[channel], message, buffers=list(buffers))
                else:
                    self._receive(source, channels[source])
        for socket in channels:
            socket.close(linger=0)

    def _receive(self, socket: zmq.Socket[bytes], channel: Channel) -> None:
        _, raw = self._session.recv(socket, mode=zmq.NOBLOCK)
        arrived = time.monotonic()
        if raw is None:
            return
        message = Message(
            arrived,
            channel,
            raw["header"]["msg_type"],
            raw["content"],
            raw["parent_header"].get("msg_id", ""),
            raw["header"],
            raw["metadata"],
            tuple(bytes(buffer) for buffer in raw["buffers"]),
        )
        with self._news:
            self._received.append(message)
            self._news.notify_all()
