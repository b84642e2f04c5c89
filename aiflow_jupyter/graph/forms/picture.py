"""A graph as a picture: a static SVG and plain text, with each node's gauge where there are figures.

Layers go from left to right by the longest way from an input. This is what stays in a saved notebook and what a
terminal shows; the live widget draws its own.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from xml.sax.saxutils import escape, quoteattr

from aiflow_jupyter.graph.problems import counted
from aiflow_jupyter.graph.spec import GraphSpec

_CARD_W, _CARD_H, _GAP_X, _GAP_Y, _PAD, _TOP = 168, 74, 54, 18, 14, 34
_BANDS = ((0.60, "#2a7ab0"), (0.85, "#b36b00"), (2.0, "#b3261e"))


@dataclass(frozen=True, slots=True)
class Gauge:
    """One node's figures: its state, events in its queue, the declared queue, the peak, events per second."""

    state: str
    depth: int
    queue: int
    peak: int
    processed: int
    rate: float | None = None

    def words(self) -> str:
        """The figures as a phrase."""
        rate = "" if self.rate is None else f", {self.rate:.0f} events per second"
        return f"{self.state}, queue {self.depth} of {self.queue}, peak {self.peak}{rate}"


def layers(spec: GraphSpec) -> list[list[str]]:
    """The nodes by their longest distance from an input; edges that go back do not count."""
    before: dict[str, set[str]] = {node: set() for node in spec.nodes}
    for edge in spec.edges:
        if edge.feedback is None:
            before[edge.target].add(edge.source)
    depth: dict[str, int] = {}
    left = list(spec.nodes)
    while left:
        ready = [node for node in left if before[node] <= depth.keys()] or left[:1]
        for node in ready:
            depth[node] = max((depth[b] + 1 for b in before[node] if b in depth), default=0)
        left = [node for node in left if node not in depth]
    rows: list[list[str]] = [[] for _ in range(max(depth.values(), default=-1) + 1)]
    for node in spec.nodes:
        rows[depth[node]].append(node)
    return rows


def svg(spec: GraphSpec, gauges: Mapping[str, Gauge] | None = None, caption: str = "") -> str:
    """The graph as SVG, with a title and a description in words for screen readers.

    Args:
        spec: the graph.
        gauges: each node's figures; without them only the structure is drawn.
        caption: a line beside the name, such as the run's state.
    """
    rows = layers(spec)
    tallest = max(len(row) for row in rows)
    width = 2 * _PAD + len(rows) * _CARD_W + (len(rows) - 1) * _GAP_X
    height = _TOP + 2 * _PAD + tallest * _CARD_H + (tallest - 1) * _GAP_Y
    place: dict[str, tuple[int, int]] = {}
    for x, row in enumerate(rows):
        top = _TOP + _PAD + (tallest - len(row)) * (_CARD_H + _GAP_Y) // 2
        for y, node in enumerate(row):
            place[node] = (_PAD + x * (_CARD_W + _GAP_X), top + y * (_CARD_H + _GAP_Y))
    heading = f"{spec.name}{f': {caption}' if caption else ''}"
    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
        f'role="img" aria-label={quoteattr(text(spec, gauges, caption))} font-family="system-ui, sans-serif">',
        f"<title>{escape(heading)}</title>",
        f'<rect width="{width}" height="{height}" rx="6" fill="#ffffff"/>',
        '<defs><marker id="aiflow-arrow" viewBox="0 0 8 8" refX="8" refY="4" markerWidth="8" markerHeight="8" '
        'orient="auto"><path d="M0 0L8 4L0 8z" fill="#6b7280"/></marker></defs>',
        f'<text x="{_PAD}" y="24" font-size="14" font-weight="600" fill="#1f2937">{escape(heading)}</text>',
    ]
    for edge in spec.edges:
        (x1, y1), (x2, y2) = place[edge.source], place[edge.target]
        x1, y1, y2 = x1 + _CARD_W, y1 + _CARD_H // 2, y2 + _CARD_H // 2
        middle = (x1 + x2) // 2
        label = (y1 + y2) // 2 - 4
        if edge.feedback:  # goes back, below the cards
            right, left, below = x1 + _PAD - 4, x2 - _PAD + 4, max(y1, y2) + (_CARD_H + _GAP_Y) // 2
            way, dashes, label = f"H{right}V{below}H{left}V{y2}H{x2}", ' stroke-dasharray="4 3"', below - 4
        else:
            way, dashes = f"C{middle} {y1} {middle} {y2} {x2} {y2}", ""
        out.append(f'<path d="M{x1} {y1}{way}" fill="none" stroke="#6b7280" stroke-width="1.4"{dashes} '
                   f'marker-end="url(#aiflow-arrow)"/>')  # fmt: skip
        if edge.port:
            out.append(f'<text x="{middle}" y="{label}" font-size="10" text-anchor="middle" '
                       f'fill="#4b5563">{escape(_short(edge.port, 12))}</text>')  # fmt: skip
    for node, (x, y) in place.items():
        out += _card(node, spec.nodes[node].operator, x, y, spec.nodes[node].policy.queue, (gauges or {}).get(node))
    return "".join([*out, "</svg>"])


def _card(node: str, operator: str, x: int, y: int, queue: int, gauge: Gauge | None) -> list[str]:
    out = [
        f'<g><rect x="{x}" y="{y}" width="{_CARD_W}" height="{_CARD_H}" rx="6" fill="#f9fafb" stroke="#9ca3af"/>',
        f'<text x="{x + 10}" y="{y + 20}" font-size="13" font-weight="600" fill="#111827">'
        f"{escape(_short(node, 18))}</text>",
        f'<text x="{x + 10}" y="{y + 35}" font-size="11" fill="#4b5563">{escape(_short(operator, 14))}'
        f"{f' · {escape(gauge.state)}' if gauge else ''}</text>",
    ]
    bar = _CARD_W - 74
    if gauge is None:
        out.append(f'<text x="{x + 10}" y="{y + 60}" font-size="11" fill="#4b5563">queue {queue}</text>')
    else:
        share = min(1.0, gauge.depth / gauge.queue)
        colour = next(colour for edge, colour in _BANDS if share <= edge)
        peak = x + 10 + round(bar * min(1.0, gauge.peak / gauge.queue))
        out += [
            f'<rect x="{x + 10}" y="{y + 51}" width="{bar}" height="9" rx="2" fill="#e5e7eb"/>',
            f'<rect x="{x + 10}" y="{y + 51}" width="{round(bar * share)}" height="9" rx="2" fill="{colour}"/>',
            f'<rect x="{peak - 1}" y="{y + 48}" width="2" height="15" fill="#374151"/>',
            f'<text x="{x + bar + 16}" y="{y + 60}" font-size="11" fill="#111827">'
            f"peak {gauge.peak}/{gauge.queue}</text>",
        ]
    return [*out, "</g>"]


def text(spec: GraphSpec, gauges: Mapping[str, Gauge] | None = None, caption: str = "") -> str:
    """The graph as lines of plain text: one per node with its gauge, and where its events go."""
    names = max((len(node) for node in spec.nodes), default=0)
    rows = [f"{spec.name}{f': {caption}' if caption else ''}"]
    targets: dict[str, list[str]] = {}
    for edge in spec.edges:
        targets.setdefault(edge.source, []).append(f"{f'{edge.port}: ' if edge.port else ''}{edge.target}")
    for node, declared in spec.nodes.items():
        arrow = f" -> {', '.join(targets[node])}" if node in targets else ""
        gauge = (gauges or {}).get(node)
        if gauge is None:
            rows.append(f"  {node:<{names}}  {declared.operator} [queue={declared.policy.queue}]{arrow}")
        else:
            filled = round(8 * min(1.0, gauge.depth / gauge.queue))
            bar = "#" * filled + "." * (8 - filled)
            rate = "" if gauge.rate is None else f"  {gauge.rate:.0f}/s"
            rows.append(f"  {node:<{names}}  {gauge.state:<9} [{bar}] {gauge.depth}/{gauge.queue}  peak {gauge.peak}  "
                        f"{counted(gauge.processed, 'event')}{rate}{arrow}")  # fmt: skip
    return "\n".join(rows)


def _short(word: str, most: int) -> str:
    return word if len(word) <= most else word[: most - 1] + "…"
