/**
 * Numbers and states in words: pure functions, so that cards, table and screen reader agree.
 */
import type { GraphNode, NodeStatus, RunState } from "./protocol";
import { isFinal } from "./store";

/** The gauge's three bands; each has a colour and a pattern of its own. */
export type Band = "low" | "high" | "full";

/** What the gauge shows: a bound is a bound, so never more than the declared queue. */
export function shownDepth(node: GraphNode, status: NodeStatus): number {
  return Math.min(status.depth, node.queue);
}

export function band(value: number, maximum: number): Band {
  const share = value / maximum;
  return share <= 0.6 ? "low" : share <= 0.85 ? "high" : "full";
}

function rounded(rate: number): string {
  return rate < 10 ? String(Math.round(rate * 10) / 10) : String(Math.round(rate));
}

export function rateText(rate: number | null): string {
  return rate === null ? "N/A" : `${rounded(rate)}/s`;
}

export function elapsedText(seconds: number): string {
  if (seconds < 60) return `${seconds.toFixed(1)} s`;
  const whole = Math.floor(seconds);
  const minutes = Math.floor(whole / 60) % 60;
  const hours = Math.floor(whole / 3600);
  const two = (value: number): string => String(value).padStart(2, "0");
  return hours > 0 ? `${hours}:${two(minutes)}:${two(whole % 60)}` : `${minutes}:${two(whole % 60)}`;
}

/** "draft: running, queue 3 of 8, peak 5, 38 events per second" */
export function nodeLabel(node: GraphNode, status: NodeStatus): string {
  const { rate } = status;
  const speed =
    rate === null
      ? "rate not known"
      : `${rounded(rate)} ${rounded(rate) === "1" ? "event" : "events"} per second`;
  return `${node.id}: ${status.state}, queue ${shownDepth(node, status)} of ${node.queue}, peak ${status.peak}, ${speed}`;
}

/**
 * One line for the live region. While a run goes on it names states and no numbers, so that it
 * changes, and is read aloud, only when something happened.
 */
export function summary(run: RunState, elapsed: number, nodes: readonly [GraphNode, NodeStatus][]): string {
  if (isFinal(run)) return `${run} in ${elapsedText(elapsed)}`;
  const parts: string[] = [];
  for (const state of ["running", "blocked", "failed"]) {
    const ids = nodes.filter(([, status]) => status.state === state).map(([node]) => node.id);
    if (ids.length > 3) parts.push(`${ids.length} nodes ${state}`);
    else if (ids.length > 0) parts.push(`${ids.join(", ")} ${state}`);
  }
  return parts.join(" · ") || run;
}
