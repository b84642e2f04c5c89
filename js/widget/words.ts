/**
 * Numbers and states in words: pure functions, so that cards, table and screen reader agree.
 */
import type { Details, GraphNode, NodeStatus, RunState } from "./protocol";
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

export function shortTime(seconds: number | null): string {
  if (seconds === null) return "N/A";
  return seconds < 1 ? `${Math.round(seconds * 1000)} ms` : elapsedText(seconds);
}

/** The percentages of a node's time that it was busy, blocked and idle; they add up to 100. */
export function shares({ busy, blocked }: Details): [number, number, number] {
  const first = Math.round(100 * busy);
  const second = Math.min(Math.round(100 * blocked), 100 - first);
  return [first, second, 100 - first - second];
}

/** All figures of a node in one line; those that most nodes do not have stand last, and only where there are any. */
export function detailsText(details: Details): string {
  const { dropped, retries, errors, wait, p95, first, lag, held } = details;
  const [working, waiting, idle] = shares(details);
  const parts = [
    `busy ${working} %, blocked ${waiting} %, idle ${idle} %`,
    `waits ${shortTime(wait)} in the queue`,
    `p95 ${shortTime(p95)}`,
    `first event after ${shortTime(first)}`,
    `${dropped} dropped`,
    `${retries} retries`,
    `${errors} errors`,
  ];
  if (lag !== null) parts.push(`${shortTime(lag)} behind the arrivals`);
  if (held !== null) parts.push(`held the event loop for ${shortTime(held)}`);
  return parts.join(", ");
}

/** "draft: running, queue 3 of 8, peak 5, 38 events per second" */
export function nodeLabel(node: GraphNode, status: NodeStatus, bottleneck = false): string {
  const { rate } = status;
  const speed =
    rate === null
      ? "rate not known"
      : `${rounded(rate)} ${rounded(rate) === "1" ? "event" : "events"} per second`;
  return `${node.id}: ${status.state}, queue ${shownDepth(node, status)} of ${node.queue}, peak ${status.peak}, ${speed}${bottleneck ? ", the bottleneck" : ""}`;
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
