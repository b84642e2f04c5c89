"""Checks of policies: what a guardian is asked to enforce and can't, or not with this operator or beside that key."""

from __future__ import annotations

import builtins
from functools import cached_property
from typing import Any

from aiflow_jupyter.errors import FAMILY
from aiflow_jupyter.events import TEXT
from aiflow_jupyter.graph.checks.pairing import Lineages
from aiflow_jupyter.graph.checks.review import CALLED, Review
from aiflow_jupyter.graph.checks.types import Flows
from aiflow_jupyter.graph.hints import takes_two
from aiflow_jupyter.graph.policy import Policy
from aiflow_jupyter.graph.problems import indefinite
from aiflow_jupyter.graph.shape import Shape
from aiflow_jupyter.graph.signatures import Parameter
from aiflow_jupyter.graph.spec import EdgeSpec


def check_policies(review: Review, flows: Flows) -> None:
    """Check every policy that says anything."""
    check = _Policies(review, flows)
    for node, spec in review.policies():
        check.node(node, spec.policy)


class _Policies:
    def __init__(self, review: Review, flows: Flows) -> None:
        self.review = review
        self.flows = flows
        spec = review.spec
        self.judged = review.shape.reached([edge.target for edge in self._giving()])
        speculative = [node for node, each in spec.nodes.items() if each.policy.effect == "speculative"]
        self.open = ~_set(review.shape, speculative)
        self.effects = _set(
            review.shape, [node for node, each in spec.nodes.items() if each.policy.effect == "non_idempotent"]
        )
        # The nodes from which a restart leads to an effect: what is held until a verdict is not yet done.
        bit = review.shape.bit
        edges = review.shape.edges.values()
        after = [e.source for e in edges if bit[e.target] & self.effects and bit[e.source] & self.open]
        self.harming = review.shape.reached(after, backward=True, past=self.open) & self.open
        self.paired = review.shape.between(node for node in spec.nodes if (s := review.signature(node)) and s.pairs)

    @cached_property
    def lineages(self) -> Lineages:
        """The lineages of what every node takes and gives."""
        return Lineages(self.review)

    def _giving(self) -> list[EdgeSpec]:
        """The edges by which verdicts leave the nodes that give them: by a port of their own, where there is one."""
        review = self.review
        found = []
        for edge in review.shape.edges.values():
            signature = review.signature(edge.source)
            if signature is not None and signature.verdicts and (signature.ports is None or review.silent(edge)):
                found.append(edge)
        return found

    def found(self, node: str, key: str, message: str, code: str, hint: str = "") -> None:
        """Note a problem at a key of a node's policy."""
        self.review.found(f"node {node!r}: {message}", code, ("nodes", node, "policy", key), hint)

    def node(self, node: str, policy: Policy) -> None:
        """Check one node's policy."""
        self.workers(node, policy)
        self.timeout(node, policy)
        self.state(node, policy)
        self.names(node, policy)
        self.exceptions(node, policy)
        self.retry(node, policy)
        self.speculative(node, policy)
        self.overflow(node, policy)
        self.idle(node, policy)

    def workers(self, node: str, policy: Policy) -> None:
        """A node that works one event at a time has one worker."""
        signature = self.review.sure(node)
        spec = self.review.spec.nodes[node]
        if signature is None or not signature.single(spec.args):
            return
        if policy.workers > 1:
            inline = spec.args.get("inline") is True
            how = f"{spec.operator} with inline=true" if inline else spec.operator
            self.found(
                node,
                "workers",
                f"{how} works one event at a time: workers={policy.workers} has no effect",
                "AF402",
                "leave out inline=true" if inline else "leave out workers",
            )

    def timeout(self, node: str, policy: Policy) -> None:
        """What runs on the loop can't be interrupted; for a speculative node, `timeout` is the wait for its verdict."""
        signature = self.review.sure(node)
        spec = self.review.spec.nodes[node]
        if policy.timeout is None or policy.effect == "speculative" or signature is None:
            return
        awaited = any(self.review.function(name).awaits for _, name, _ in self.review.called(node))
        if awaited or not signature.single(spec.args):
            return
        if spec.args.get("inline") is True:
            message = "timeout can't be kept: inline code holds the loop until it returns"
            self.found(node, "timeout", message, "AF412", "leave out inline=true")
        elif not any(_elsewhere(signature.parameter(name), value) for name, value in spec.args.items()):
            message = f"timeout can't be kept: {spec.operator} runs on the loop, which it holds until it returns"
            self.found(node, "timeout", message, "AF412", "leave out timeout; have a map before it do what takes long")

    def state(self, node: str, policy: Policy) -> None:
        """State that calls share has a mode, and partitioned state a key."""
        stateful = [
            name
            for parameter, name, _ in self.review.called(node)
            if (parameter is None or parameter.gets == "payload") and "state" in self.review.function(name).parameters
        ]
        if stateful and policy.workers > 1 and policy.state == "stateless":
            self.found(
                node,
                "workers",
                f"{stateful[0]!r} keeps state, and {policy.workers} workers would change it at once",
                "AF403",
                "name how it is shared: state=serialized, state=transactional, or state=partitioned with key=FUNCTION",
            )
        if policy.state == "partitioned" and policy.key is None:
            message = "state=partitioned needs the function that gives an event's key"
            self.found(node, "state", message, "AF404", "[state=partitioned, key=FUNCTION, keys=1024]")
        if policy.state != "partitioned":
            if policy.key is not None:
                message = f"key={policy.key} says nothing for state={policy.state}"
                self.found(node, "key", message, "AF404", "write state=partitioned, or leave out key")
            if "keys" in policy.model_fields_set:
                message = f"keys={policy.keys} has no effect for state={policy.state}"
                self.found(node, "keys", message, "AF405", "write state=partitioned, or leave out keys")

    def names(self, node: str, policy: Policy) -> None:
        """The functions that a policy names are there, and can be called as it calls them."""
        review = self.review
        for key in ("key", "compensate"):
            name = getattr(policy, key)
            if name is None:
                continue
            if name not in review.functions:
                hint = review.nearest(name, review.functions) if review.functions else "define it in a cell before"
                self.found(node, key, f"{key}={name}: no function is called {name!r}", "AF205", hint)
            elif review.objects is not None and not callable(review.objects[name]):
                kind = type(review.objects[name]).__name__
                self.found(node, key, f"{key}={name}: {name!r} is no function but {indefinite(kind)}", "AF303")
            elif key == "compensate":
                if review.objects is not None and not takes_two(review.objects[name]):
                    message = f"compensate={name}: it can't be called with a payload and the error"
                    self.found(node, key, message, "AF303", f"def {name}(payload, error): ...")
            elif review.function(name).problem:
                problem = review.function(name).problem
                self.found(node, key, f"{key}={name}: it can't be called with one value: {problem}", "AF303")
            elif review.function(name).awaits or review.function(name).yields:
                does = "awaits" if review.function(name).awaits else "yields"
                message = f"{key}={name}: {name!r} {does}; it is called on the loop, so it has to be a plain function"
                self.found(node, key, message, "AF303", "have a map before it look up what it needs")

    def exceptions(self, node: str, policy: Policy) -> None:
        """The exceptions that a policy names are there."""
        review = self.review
        for name in policy.retry_on:
            if not self._raisable(name):
                known = [*FAMILY, *(each for each in vars(builtins) if _exception(vars(builtins)[each]))]
                hint = review.nearest(name, [*known, *review.functions])
                self.found(node, "retry_on", f"retry_on: no exception is called {name!r}", "AF205", hint)

    def _raisable(self, name: str) -> bool:
        """Whether a name is that of an exception, as far as that is known."""
        review = self.review
        if name in review.functions:
            return review.objects is None or _exception(review.objects[name])
        return _exception(getattr(builtins, name, None)) or name in FAMILY

    def retry(self, node: str, policy: Policy) -> None:
        """What is tried again may be repeated, here and where a restart leads."""
        review = self.review
        if policy.retry > 1 and policy.effect == "non_idempotent" and policy.compensate is None:
            self.found(
                node,
                "retry",
                f"retry={policy.retry} would repeat the effect of a non_idempotent node",
                "AF406",
                "leave out retry, name what undoes a failed call (compensate=FUNCTION), or write effect=idempotent",
            )
        if policy.compensate is not None and policy.retry == 1:
            message = f"compensate={policy.compensate} undoes a call that is tried again, and retry is 1"
            self.found(node, "compensate", message, "AF408", "write retry=3, or leave out compensate")
        elif policy.compensate is not None and policy.effect != "non_idempotent":
            message = f"compensate={policy.compensate} has no effect for effect={policy.effect}"
            self.found(node, "compensate", message, "AF405", "write effect=non_idempotent, or leave out compensate")
        signature = review.signature(node)
        restarts = signature is not None and signature.restarts
        if policy.retry == 1:
            for key in ("backoff", "retry_on", *(() if restarts else ("restart",))):
                if key in policy.model_fields_set and getattr(policy, key):
                    self.found(node, key, f"{key} has no effect without retry", "AF405", f"[retry=3, {key}=...]")
        if (policy.retry > 1 or restarts) and policy.restart and self.harming & review.shape.bit[node]:
            after = review.shape.reached([node], past=self.open) & self.effects & ~review.shape.bit[node]
            harmed = next(iter(review.shape.members(after)), node)
            self.found(
                node,
                "restart",
                f"a restart here could have {harmed!r}, which is non_idempotent, do again what it has done",
                "AF407",
                "leave out restart, or put a guard and a node with effect=speculative between them",
            )

    def speculative(self, node: str, policy: Policy) -> None:
        """What is held until a verdict gets one."""
        if policy.effect != "speculative":
            return
        review = self.review
        shape = review.shape
        signature = review.signature(node)
        if signature is not None and (signature.sink or signature.ports is not None):
            what = "a sink gives nothing that could be held" if signature.sink else "what is routed is not held"
            self.found(node, "effect", f"{what} until a verdict", "AF409", "make the node before it speculative")
        elif not self.judged & shape.bit[node]:
            judges = [each.name for each in review.signatures.values() if each.verdicts] or ["guard"]
            message = "no node that gives verdicts leads to it: its outputs would be held for ever"
            self.found(node, "effect", message, "AF409", f"lead {judges[0]}(...).verdict to it")
        else:
            giving = [edge.source for edge in self._giving() if shape.reached([edge.target]) & shape.bit[node]]
            message, hint = self.lineages.uncovered(node, list(dict.fromkeys(giving)))
            if message:
                self.found(node, "effect", message, "AF409", hint)

    def overflow(self, node: str, policy: Policy) -> None:
        """Rules for what comes, and what a drop means for a join."""
        shape = self.review.shape
        kinds = self.flows.into[node].kinds
        rules: dict[str, Any] = policy.overflow if isinstance(policy.overflow, dict) else {"else": policy.overflow}
        if kinds is not None:
            text = bool(kinds & TEXT)
            for kind, rule in rules.items():
                if rule == "conflate" and not text and (kind == "else" or kind in TEXT):
                    message = "conflate merges text, and none comes here: nothing is merged"
                    self.found(node, "overflow", message, "AF405", f"it gets {' and '.join(sorted(kinds))}")
                elif kind != "else" and kind not in kinds:
                    message = f"the rule for {kind} has no effect: none comes here"
                    self.found(node, "overflow", message, "AF405", f"it gets {' and '.join(sorted(kinds))}")
        dropping = [rule for rule in rules.values() if rule in ("drop_newest", "drop_oldest", "conflate")]
        if dropping and self.paired & shape.bit[node]:
            self.found(
                node,
                "overflow",
                f"{dropping[0]} between split and join: what is dropped leaves its partner at the join alone",
                "AF410",
                "the join is told by a skip; write overflow=block to have every pair",
            )

    def idle(self, node: str, policy: Policy) -> None:
        """Keys that change nothing beside the others."""
        given = policy.model_fields_set
        if "reorder" in given and policy.reorder:
            if policy.order == "none":
                self.found(node, "reorder", "reorder has no effect with order=none", "AF405", "leave one of them out")
            elif policy.workers == 1:
                message = "reorder has no effect with one worker, whose results are in order"
                self.found(node, "reorder", message, "AF405", "write workers=2 or more, or leave out reorder")
        if policy.order == "none" and policy.state in ("serialized", "transactional"):
            message = f"order=none has no effect: state={policy.state} works one event at a time, in order"
            self.found(node, "order", message, "AF405", "leave out order")
        elif policy.order == "none" and policy.workers == 1:
            self.found(node, "order", "order=none has no effect with one worker", "AF405", "leave out order")
        signature = self.review.sure(node)
        args = self.review.spec.nodes[node].args
        if policy.hold is not None and policy.effect != "speculative" and policy.state != "transactional":
            known = signature is not None or self.review.bare(node)
            if known and not (signature and (signature.holds(args) or signature.pairs)):
                operator = self.review.spec.nodes[node].operator
                message = f"hold={policy.hold} has no effect: {operator} holds nothing"
                self.found(node, "hold", message, "AF405", "leave out hold; queue bounds what waits")


def _elsewhere(parameter: Parameter | None, value: Any) -> bool:
    """Whether an argument names a function that is called off the loop, or awaited."""
    return parameter is not None and parameter.type in CALLED and not parameter.plain and value not in parameter.choices


def _exception(thing: Any) -> bool:
    return isinstance(thing, type) and issubclass(thing, BaseException)


def _set(shape: Shape, nodes: list[str]) -> int:
    found = 0
    for node in nodes:
        found |= shape.bit[node]
    return found
