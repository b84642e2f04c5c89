"""A run: one execution of a graph that passed its checks.

    READY --start, offer--> RUNNING --every node took `end`--> DONE
                             |  ^ |----a node without an error port raised, a deadlock--> FAILED   (what came is kept)
                       pause v  | `----cancel------------------------------------------> CANCELLED
                            (served nothing)

`offer` puts values in as long as the inputs are open; `start` puts the last one in and closes them, unless it is told
to leave them open: then `close_inputs` does.

When `await run.cancel()` returns, nothing more is emitted, no new call starts, no asynchronous code of the run runs and
the provider's connection is closed; with `drain=True` what was admitted is finished first. A user's thread can't be
killed: its result is discarded, and `still_running` names its node. `stop` ends one node; its policy says what else
stops with it. A run belongs to the event loop it was made on; `status()` may be read from any thread.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from aiflow_jupyter.errors import AiflowError, CommandError, RunCancelled, RunError, where_raised, words
from aiflow_jupyter.events import Event, Kind
from aiflow_jupyter.graph.checks.checking import require
from aiflow_jupyter.graph.parsed import Built
from aiflow_jupyter.graph.problems import counted, nearest
from aiflow_jupyter.graph.spec import GraphSpec
from aiflow_jupyter.runtime.answered import MOST_ANSWERS, Answered
from aiflow_jupyter.runtime.attempts import JITTER
from aiflow_jupyter.runtime.behaviour import Binding, Collected, Operator
from aiflow_jupyter.runtime.bottleneck import Bottleneck, bottleneck
from aiflow_jupyter.runtime.deadlock import Detector
from aiflow_jupyter.runtime.guardian import Guardian
from aiflow_jupyter.runtime.injection import kind_of
from aiflow_jupyter.runtime.metrics import RunState, RunStatus, Snapshot, counts_of
from aiflow_jupyter.runtime.result import Result
from aiflow_jupyter.runtime.scheduler import Scheduler
from aiflow_jupyter.runtime.source import Source
from aiflow_jupyter.runtime.wiring import Timer, wire
from aiflow_jupyter.runtime.within import OF_RUN

if TYPE_CHECKING:
    from random import Random

__all__ = ["NO_VALUE", "Result", "Run", "fresh_id"]

NO_VALUE: Final = object()
"""What a run is started with that is to be open, and is offered its first value later."""
CLOSE_TIMEOUT_S = 2.0
"""How long `cancel` waits for a node's asynchronous code that does not end when it is cancelled."""


@dataclass(slots=True, eq=False)
class _Sender:
    """Whoever offers a value from outside and waits until it is taken in."""

    loop: asyncio.AbstractEventLoop
    pending: int = 0
    future: asyncio.Future[None] | None = field(default=None)
    node: str = "run"

    def resume(self) -> None:
        if self.future is not None and not self.future.done():
            self.future.set_result(None)


def fresh_id() -> str:
    """An identifier for a run: unguessable, and short enough to type its beginning."""
    return secrets.token_hex(6)


class Run:
    """One execution of a checked graph.

    Args:
        spec: a graph that passed `graph.checks.checking`.
        operators: the known operators.
        scheduler: the scheduler of the loop that will run it.
        functions: the user's functions by name, as they are now.
        source: what answers requests.
        flows: other graphs by name, for `delegate`.
        show: what `sink(display=true)` hands its events to.
        run_id: its identifier; None for a fresh one.
        conversation: the name of the conversation that its inputs are turns of, empty for none.
        harmless: whether what it gives goes to nothing that a restart must not repeat.
        random: gives what is random in it; a seeded one makes that come again.

    Attributes:
        id: its identifier.
        conversation: the name of the conversation that its inputs are turns of.
        spec: the graph.
        state: `ready`, `running`, `done`, `failed` or `cancelled`; see the module.
        error: why it failed or was cancelled.
        answers: the models' answers so far.
        variables: what each `sink(var=...)` has collected so far.
        guardians: what runs each node, in the order of the graph.
        paused: it serves nothing until `resume`.

    Raises:
        AiflowError: a function or an argument turned out not to fit.
    """

    def __init__(
        self,
        spec: GraphSpec,
        operators: Mapping[str, Operator],
        scheduler: Scheduler,
        *,
        functions: Mapping[str, Any] | None = None,
        source: Source | None = None,
        flows: Mapping[str, GraphSpec] | None = None,
        show: Callable[[Event], None] | None = None,
        run_id: str | None = None,
        conversation: str = "",
        harmless: bool = True,
        random: Random = JITTER,
    ) -> None:
        self.id = run_id or fresh_id()
        self.conversation = conversation
        self.spec = spec
        self.state: RunState = "ready"
        self.error: AiflowError | None = None
        self.answers = Answered()
        self.variables: dict[str, Collected] = {}
        self._scheduler = scheduler
        self._started = self._ended = 0
        self._failed_node: str | None = None
        self._offers = 0
        self._shut = self._last = self._told_ends = False
        self._senders: set[_Sender] = set()
        self._closing: asyncio.Task[None] | None = None
        self._over = asyncio.Event()
        self._hung: list[str] = []
        self._stopped: set[str] = set()
        self._first_token = 0
        self._timers: set[Timer] = set()
        self._operators = operators
        self._inner: list[Run] = []
        self._outer: Run | None = None
        self._warnings: dict[str, str] = {}
        self._partial = False
        self.paused = False
        common = Binding(
            "",
            functions or {},
            source,
            scheduler.clock,
            flows=flows or {},
            answers=self.answers,
            variables=self.variables,
            show=show,
            harmless=harmless and all(node.policy.effect != "non_idempotent" for node in spec.nodes.values()),
            run=self.id,
            random=random,
            check=self._check_within,
            inner=self._run_within,
        )
        self._common = common
        wired = wire(spec, operators, common, scheduler, self, self._timers)
        self.guardians, self._threads = wired.guardians, wired.threads
        if getattr(source, "stamps", False):
            for guardian in self.guardians.values():
                guardian.lag_ns = 0
        self._open = len(self.guardians)
        self._detector = Detector(scheduler.loop, self.guardians.values(), self._may_change, self._stuck)

    # -- the life of a run

    async def start(self, value: Any, *, to: str | None = None, leave_open: bool = False) -> None:
        """Hand the run's one input (or the last one, after `offer`) to the graph and close its inputs.

        Args:
            value: the payload; for `generate` a text or a list of messages. With `leave_open` it may be `NO_VALUE`.
            to: the input node, where the graph has several.
            leave_open: more will be offered, until `close_inputs`.

        Raises:
            CommandError: `to` is missing or is no input.
            RunError: the inputs are closed, or the run is over.
        """
        if value is NO_VALUE and leave_open:
            self._begin()
            return
        inputs = self.spec.inputs()
        if to is None and len(inputs) > 1:
            raise CommandError(
                f"the graph has several inputs: {', '.join(inputs)}", code="AF806", hint="say which: --to NODE"
            )
        if to is not None and to not in inputs:
            raise CommandError(
                f"{to!r} is no input of the graph", code="AF806", hint=f"its inputs: {', '.join(inputs)}"
            )
        node = to or inputs[0]
        kind = kind_of(self.spec, node, value, self._operators)
        self._begin()
        self._last = not leave_open
        try:
            await self._put_in(node, kind, value)
        finally:
            self._last = False  # of a start that is given up the value was not the last one
        if not leave_open:
            await self.close_inputs()

    async def offer(self, node: str, value: Any) -> None:
        """Put a value into a node's queue, by the node's policy; the first one begins the run.

        One that is cancelled while it waits takes the value back; where the node has taken that up by then, it returns.

        Args:
            node: any node of the graph.
            value: of the type that the graph declares for it (`inject`), else of one that the node's operator takes.

        Raises:
            CommandError: no such node, or it does not take such a value.
            RunError: the inputs are closed, the run is over, or it failed before the value was taken in.
            RunCancelled: it was cancelled.
        """
        guardian = self.guardians.get(node)
        if guardian is None:
            raise CommandError(f"no node is called {node!r}", code="AF806", hint=nearest(str(node), self.guardians))
        kind = kind_of(self.spec, node, value, self._operators)
        self._begin()
        if guardian.done or guardian.closed:
            raise self._ended_error(node)
        await self._put_in(node, kind, value)

    async def close_inputs(self) -> None:
        """Nothing more is offered: once what was admitted is through, the run is done.

        Returns once what was offered before is in. Also where this wait is given up, the inputs close then.
        """
        self._shut = True
        if self.state == "ready":
            self._begin_now()
        self._end_inputs()
        if waiting := [sender.future for sender in self._senders if sender.future is not None]:
            await asyncio.wait(waiting)

    def _end_inputs(self) -> None:
        """Tell the inputs, once, that nothing more comes, as soon as that is so."""
        if not self._shut or self._senders or self._told_ends or self.state != "running":
            return
        self._told_ends = True
        self._scheduler.enter(self, self._scheduler.clock())
        for node in self.spec.inputs():
            self.guardians[node].signal(Event("end", source="run"))
        self._scheduler.run_ready()

    def _begin(self) -> None:
        """See that the run takes something in, and is running from the first time on."""
        if self.state not in ("ready", "running"):
            raise self._over_error()
        if self._shut or self._last:
            raise RunError("the run's inputs are closed: it takes nothing in any more", code="AF605")
        if self.state == "ready":
            self._begin_now()

    def _begin_now(self) -> None:
        self.state = "running"
        self._started = self._scheduler.clock()

    async def _put_in(self, node: str, kind: Kind, value: Any) -> None:
        guardian = self.guardians[node]
        now = self._scheduler.clock()
        event = Event(kind, value, self.conversation, "run", self._offers, now, str(self._offers))
        self._offers += 1
        sender = _Sender(self._scheduler.loop)
        self._scheduler.enter(sender, now)
        if not guardian.push(event, now):
            guardian.park(event, sender)
            sender.future = self._scheduler.loop.create_future()
            self._senders.add(sender)
            try:
                await sender.future
            except asyncio.CancelledError:
                guardian.withdraw(sender)
                now = self._scheduler.clock()
                self._scheduler.enter(sender, now)
                if sender.pending or guardian.closed or guardian.take_back(event, now):
                    self._scheduler.run_ready()
                    raise
            finally:
                self._senders.discard(sender)
                self._end_inputs()
            if sender.pending or guardian.closed:
                raise self._over_error() if self.state != "running" else self._ended_error(node)
        self._scheduler.run_ready()

    def _ended_error(self, node: str) -> AiflowError:
        return RunError(f"node {node!r} has ended: it takes nothing in any more", code="AF605")

    def _over_error(self) -> AiflowError:
        return self.error or RunError("the run is over: it takes nothing in any more", code="AF605")

    async def wait(self) -> Result:
        """Wait for the end.

        Raises:
            RunError: a node failed; what was delivered is its `result`. Or one of its functions waits.
            RunCancelled: it was cancelled.
        """
        self._from_outside()
        await self._over.wait()
        if isinstance(self.error, RunError):
            self.error.result = self.result()
        if self.error is not None:
            raise self.error
        return self.result()

    async def run(self, value: Any, *, to: str | None = None, leave_open: bool = False) -> Result:
        """Start, wait, and give the result; cancelling this call cancels the run."""
        try:
            await self.start(value, to=to, leave_open=leave_open)
            return await self.wait()
        except asyncio.CancelledError:
            await self.cancel()
            raise
        except AiflowError as error:
            if self.state == "ready":  # it could not start: it is over, for whoever watches it, too
                self._stop("failed", error)
                await self._over.wait()
            raise

    async def cancel(self, *, drain: bool = False) -> None:
        """Stop the run; see the module for what holds when this returns.

        Args:
            drain: take nothing more in, but finish what was admitted.

        Raises:
            RunError: a function of the run asked it to drain, and would wait for itself.
        """
        if drain and self.state == "running":
            self._from_outside()
            self.resume()
            await self.close_inputs()
        elif self.state in ("ready", "running"):
            self._stop("cancelled", RunCancelled("the run was cancelled"))
        await self._over.wait()

    def _from_outside(self) -> None:
        """See that whoever waits for the end is no part of what has to end."""
        if self.state in ("ready", "running") and self._within():
            raise RunError(
                "a function of the run can't wait for the run's end, which waits for the function",
                code="AF604",
                hint="have it call close_inputs() and return: the run then ends once all it took in is through",
            )

    def _within(self) -> bool:
        """Whether this is called by a function of the run: by one of its workers, or for one of its threads."""
        task = asyncio.current_task()
        here = OF_RUN.get() is self or any(guardian.runs(task) for guardian in self.guardians.values())
        return here or any(inner._within() for inner in self._inner)  # noqa: SLF001 - a run of the same kind

    async def stop(self, node: str) -> None:
        """Stop one node; where that goes on to is said by the policy `cancel` of each node that stops.

        `upstream`: nodes stop that give to nobody else. `downstream`: what the node gave and nobody took is discarded.
        What was made from its part is marked incomplete downstream.

        Raises:
            CommandError: no such node.
        """
        if node not in self.guardians:
            raise CommandError(f"no node is called {node!r}", code="AF806", hint=nearest(str(node), self.guardians))
        stopped: list[Guardian] = []
        if self.state == "running":
            self._scheduler.enter(self, self._scheduler.clock())
            self._stop_node(self.guardians[node], stopped)
            self._scheduler.run_ready()
        for guardian in stopped:
            await guardian.wait_closed()

    def _stop_node(self, guardian: Guardian, stopped: list[Guardian]) -> None:
        if guardian.done or guardian.closed:
            return
        stopped.append(guardian)
        self._stopped.add(guardian.node)
        cancel = guardian.policy.cancel
        guardian.dismiss(discard=cancel in ("both", "downstream"))
        self.ended(guardian)
        if cancel in ("both", "upstream"):
            for source in {edge.source for edge in self.spec.edges if edge.target == guardian.node}:
                targets = {edge.target for edge in self.spec.edges if edge.source == source}
                if all(self.guardians[target].closed for target in targets):
                    self._stop_node(self.guardians[source], stopped)

    def pause(self) -> None:
        """Serve nothing until `resume`; what is in service goes on, and queues fill up to their bounds."""
        if self.state == "running" and not self.paused:
            self.paused = True
            for guardian in self.guardians.values():
                guardian.pause()

    def resume(self) -> None:
        """Go on after `pause`."""
        if self.paused:
            self.paused = False
            for guardian in self.guardians.values():
                if not guardian.closed:
                    guardian.resume_serving()

    def _check_within(self, spec: GraphSpec) -> None:
        """See that another graph passes its checks; see `Binding.check`."""
        signatures = {name: operator.signature for name, operator in self._operators.items()}
        require(spec, signatures, self._common.functions, Built(spec), flows=self._common.flows)

    def _run_within(self, spec: GraphSpec, operators: Mapping[str, Operator], run_id: str) -> Run:
        """A run of another graph for a node of this one; see `Binding.inner`."""
        common = self._common
        inner = Run(
            spec,
            {**self._operators, **operators},
            self._scheduler,
            functions=common.functions,
            source=common.source,
            flows=common.flows,
            run_id=run_id,
            conversation=self.conversation,
            harmless=common.harmless,
            random=common.random,
        )
        self._inner = [each for each in self._inner if each.state in ("ready", "running") or each.still_running]
        self._inner.append(inner)
        inner._outer = self
        return inner

    def result(self) -> Result:
        """What has come so far."""
        complete = self.state == "done" and not self._stopped and not self._partial
        complete = complete and not any(guardian.errors for guardian in self.guardians.values())
        return Result(self.variables, self.answers, self._snapshot(), complete, _shape=(self.spec, self._inline()))

    @property
    def still_running(self) -> list[str]:
        """Nodes whose code runs on although its result is not waited for any more: the run is over, or it timed out."""
        over = self.state not in ("ready", "running")
        threads = [node for node, each in self._threads.items() if (each.running if over else each.abandoned)]
        inside = [f"{inner.spec.name}.{node}" for inner in self._inner for node in inner.still_running]
        return threads + [node for node in self._hung if node not in threads] + inside

    @property
    def elapsed_s(self) -> float:
        """Seconds from the start until now, or until the end."""
        if not self._started:
            return 0.0
        return ((self._ended or self._scheduler.clock()) - self._started) / 1e9

    def status(self) -> RunStatus:
        """The figures of now, for people and for the widget."""
        return self._snapshot().status()

    def _snapshot(self) -> Snapshot:
        now = self._ended or self._scheduler.clock()
        if not self._first_token:  # once there is one it stays, so that a long run is not searched again and again
            listed = min((answer.first for answer in self.answers if answer.first), default=0)
            self._first_token = self.answers.first_token or listed
        warnings = tuple(self._warnings.values())
        if let_go := self.answers.let_go:
            warnings += (f"the run lists its last {MOST_ANSWERS:,} answers, and not the {let_go:,} before",)
        return Snapshot(
            self.id,
            self.spec.name,
            self.state,
            self._started,
            now,
            self.error.message if self.error is not None else "",
            counts_of(self.guardians.values(), self.state, now, self._failed_node),
            self._first_token,
            warnings,
            self.paused,
        )

    def bottleneck(self) -> Bottleneck | None:
        """The node that holds the others up, and what would help; None while none does."""
        return bottleneck(self.status(), self.spec, self._inline())

    def _inline(self) -> dict[str, bool]:
        return {name: guardian.inline for name, guardian in self.guardians.items()}

    # -- reports of the guardians

    def failed(self, guardian: Guardian, event: Event, error: BaseException) -> None:
        """A node raised and has no `error` port: the run fails, naming it."""
        if self.state != "running":
            return
        self._failed_node = guardian.node
        if isinstance(error, AiflowError):
            named = f"node {guardian.node!r}"
            said = error.message if error.message.startswith(named) else f"{named}: {error.message}"
            cause = RunError(said, code=error.code, hint=error.hint)
        else:
            cause = RunError(
                f"node {guardian.node!r} failed on event {event.sequence}: {type(error).__name__}: {words(error)}",
                code="AF603",
                hint=where_raised(error),
            )
        cause.node, cause.sequence = guardian.node, event.sequence
        cause.__cause__ = error
        self._stop("failed", cause)

    def ended(self, guardian: Guardian) -> None:
        """A node is through with its inputs."""
        del guardian
        self._open -= 1
        if not self._open and self.state == "running":
            self._say_lost()
            self.state = "done"
            self._ended = self._scheduler.clock()
            self._scheduler.loop.call_soon(self._close)

    @property
    def watching(self) -> bool:
        """Whether a deadlock is already looked for."""
        return self._detector.watching

    def watch(self) -> None:
        """A node is blocked."""
        self._detector.watch()

    def warn(self, node: str, text: str) -> None:
        """What whoever runs a node should know: it stands in the status, also of a run around this one.

        Called from any thread.
        """
        self._warnings[node] = text
        if self._outer is not None:
            self._outer.warn(f"{self.spec.name}.{node}", f"in graph {self.spec.name!r}: {text}")

    def withheld(self, node: str, text: str) -> None:
        """A node kept a part of what was asked for from leaving: the result is not whole."""
        self._partial = True
        self.warn(node, text)

    def _say_lost(self) -> None:
        """Say of each node what overflow dropped there, or what failed: by declaration, but the result is not whole."""
        for node, guardian in self.guardians.items():
            if lost := guardian.lost:
                text = f"node {node!r} dropped {counted(lost, 'event')}, as its overflow says: the result is not whole"
                self.withheld(f"{node}.overflow", text)
            if guardian.errors and guardian.ports.get("error"):  # without it, the run's error says what failed
                count = counted(guardian.errors, "event")
                text = f"{count} failed at node {node!r} and left by its error port: the result may not be whole"
                self.withheld(f"{node}.errors", text)

    def _may_change(self) -> bool:
        """Whether something outside the nodes may still bring the run on."""
        return bool(self._timers) or self.paused or not (self._shut or self._last)

    def _stuck(self, who: str) -> None:
        if self.state == "running":
            error = RunError(
                f"the run is stuck: {who}",
                code="AF510",
                hint="give one of these nodes a larger queue or an overflow rule, or close the loop by a feedback edge",
            )
            self._stop("failed", error)

    def _stop(self, state: RunState, error: AiflowError) -> None:
        self._say_lost()
        self.state = state
        self.error = error
        self._ended = self._scheduler.clock()
        for guardian in self.guardians.values():
            guardian.close()
        for sender in self._senders:
            sender.resume()
        self._scheduler.loop.call_soon(self._close)

    def _close(self) -> None:
        """See that every node's asynchronous code ends, and let go of what the nodes hold open."""
        self._detector.stop()
        for timer in tuple(self._timers):
            timer.cancel()
        restless = [guardian for guardian in self.guardians.values() if not guardian.at_rest()]
        if restless:
            self._closing = self._scheduler.loop.create_task(self._wait_for(restless))
        else:
            self._closed()

    async def _wait_for(self, guardians: Collection[Guardian]) -> None:
        waits = {asyncio.ensure_future(guardian.wait_closed()): guardian.node for guardian in guardians}
        try:
            _, late = await asyncio.wait(waits, timeout=CLOSE_TIMEOUT_S)
            for task in late:
                self._hung.append(waits[task])
                task.cancel()
        finally:
            self._closed()

    def _closed(self) -> None:
        for threads in self._threads.values():
            threads.close()
        self._over.set()
