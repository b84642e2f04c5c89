/**
 * The wire between kernel and view: every type on it, and a parser that trusts nothing.
 *
 * A parser returns a value of the declared type or throws `ProtocolError` naming the place.
 * Names of nodes come from users, so they become keys of a Map, never of an object.
 * The Python half holds itself to the same text; `tests/data/frames.json` is read by both.
 */

export const FLOW_MIME = "application/vnd.aiflow.flow+json";

export const RUN_STATES = ["ready", "running", "done", "failed", "cancelled"] as const;
export const NODE_STATES = ["idle", "running", "blocked", "done", "failed", "cancelled"] as const;

export type RunState = (typeof RUN_STATES)[number];
export type NodeState = (typeof NODE_STATES)[number];

export interface GraphNode {
  id: string;
  operator: string;
  /** The declared bound of the node's queue, in events. */
  queue: number;
  workers: number;
}

export interface GraphEdge {
  from: string;
  port: string | null;
  to: string;
}

export interface Graph {
  name: string;
  nodes: GraphNode[];
  edges: GraphEdge[];
}

export interface NodeStatus {
  state: NodeState;
  /** Data events waiting in the queue now. */
  depth: number;
  /** Highest depth seen. */
  peak: number;
  /** Events served so far. */
  processed: number;
  /** Events per second; null where it cannot be told. */
  rate: number | null;
}

/** What is looked at twice a second; times in seconds, null where there is none. */
export interface Details {
  dropped: number;
  retries: number;
  errors: number;
  /** Shares of the node's time; the rest it was idle. */
  busy: number;
  blocked: number;
  /** Mean time in the queue. */
  wait: number | null;
  /** Service time that 95 % of the events stayed below. */
  p95: number | null;
  /** From the run's start to the first event. */
  first: number | null;
  /** Mean time since an event's arrival at its source. */
  lag: number | null;
  /** The longest that its code held the event loop. */
  held: number | null;
  /** What a bottleneck does, and what would help; "" for the others. */
  words: string;
}

export interface Status {
  seq: number;
  /** Seconds since the run began. */
  elapsed: number;
  runId: string;
  run: RunState;
  /** What went wrong and what mends it; before that what is waited for, or how an answer came; or "". */
  message: string;
  nodes: Map<string, NodeStatus>;
  details: Map<string, Details>;
  /** The node that holds others up, or "". */
  bottleneck: string;
}

/** Kernel -> view. A frame's status carries only the nodes, and the details, that changed. */
export type Message =
  | { kind: "frame"; status: Status }
  | { kind: "snapshot"; status: Status }
  | { kind: "ack"; action: "cancel" };

/** View -> kernel. */
export type Request = { kind: "hello" } | { kind: "cancel" };

/** What a saved notebook keeps under `FLOW_MIME`. */
export interface SavedFlow {
  version: 1 | 2;
  graph: Graph;
  snapshot: Status;
}

export class ProtocolError extends Error {
  override name = "ProtocolError";

  constructor(where: string, expected: string, value: unknown) {
    const got = typeof value === "object" && value !== null ? "an object" : String(JSON.stringify(value));
    super(`${where}: expected ${expected}, got ${got.slice(0, 60)}`);
  }
}

type Fields = Record<string, unknown>;

function fields(value: unknown, where: string): Fields {
  if (typeof value !== "object" || value === null || Array.isArray(value))
    throw new ProtocolError(where, "an object", value);
  return value as Fields;
}

function list(value: unknown, where: string): unknown[] {
  if (!Array.isArray(value)) throw new ProtocolError(where, "a list", value);
  return value;
}

function text(value: unknown, where: string): string {
  if (typeof value !== "string") throw new ProtocolError(where, "a string", value);
  return value;
}

function amount(value: unknown, where: string): number {
  if (typeof value !== "number" || !Number.isFinite(value) || value < 0)
    throw new ProtocolError(where, "a number of at least 0", value);
  return value;
}

function count(value: unknown, where: string, least = 0): number {
  if (!Number.isSafeInteger(value) || (value as number) < least)
    throw new ProtocolError(where, `an integer of at least ${least}`, value);
  return value as number;
}

function oneOf<T extends string>(value: unknown, allowed: readonly T[], where: string): T {
  if (!allowed.includes(value as T)) throw new ProtocolError(where, `one of ${allowed.join(", ")}`, value);
  return value as T;
}

export function parseGraph(value: unknown): Graph {
  const graph = fields(value, "graph");
  const nodes = list(graph.nodes, "graph.nodes").map((item, i) => {
    const where = `graph.nodes[${i}]`;
    const node = fields(item, where);
    return {
      id: text(node.id, `${where}.id`),
      operator: text(node.operator, `${where}.operator`),
      queue: count(node.queue, `${where}.queue`, 1),
      workers: count(node.workers, `${where}.workers`, 1),
    };
  });
  const ids = new Set(nodes.map((node) => node.id));
  if (ids.size < nodes.length) throw new ProtocolError("graph.nodes", "ids that differ", graph.nodes);
  const known = (id: unknown, where: string): string => {
    if (!ids.has(text(id, where))) throw new ProtocolError(where, "the id of a node", id);
    return id as string;
  };
  const edges = list(graph.edges, "graph.edges").map((item, i) => {
    const where = `graph.edges[${i}]`;
    const edge = fields(item, where);
    return {
      from: known(edge.from, `${where}.from`),
      port: edge.port === null ? null : text(edge.port, `${where}.port`),
      to: known(edge.to, `${where}.to`),
    };
  });
  return { name: text(graph.name, "graph.name"), nodes, edges };
}

function parseNodeStatus(value: unknown, where: string): NodeStatus {
  const [state, depth, peak, processed, rate] = list(value, where);
  return {
    state: oneOf(state, NODE_STATES, `${where}[0]`),
    depth: count(depth, `${where}[1]`),
    peak: count(peak, `${where}[2]`),
    processed: count(processed, `${where}[3]`),
    rate: rate === null ? null : amount(rate, `${where}[4]`),
  };
}

function parseDetails(value: unknown, where: string): Details {
  const [dropped, retries, errors, busy, blocked, wait, p95, first, lag, held, words] = list(value, where);
  const seconds = (item: unknown, i: number): number | null =>
    item === null ? null : amount(item, `${where}[${i}]`);
  return {
    dropped: count(dropped, `${where}[0]`),
    retries: count(retries, `${where}[1]`),
    errors: count(errors, `${where}[2]`),
    busy: amount(busy, `${where}[3]`),
    blocked: amount(blocked, `${where}[4]`),
    wait: seconds(wait, 5),
    p95: seconds(p95, 6),
    first: seconds(first, 7),
    lag: seconds(lag, 8),
    held: seconds(held, 9),
    words: text(words, `${where}[10]`),
  };
}

export function parseStatus(value: unknown): Status {
  const status = fields(value, "status");
  const nodes = new Map<string, NodeStatus>();
  for (const [id, item] of Object.entries(fields(status.nodes, "status.nodes")))
    nodes.set(id, parseNodeStatus(item, `status.nodes[${JSON.stringify(id)}]`));
  // What was saved by the first version has neither of these.
  const details = new Map<string, Details>();
  for (const [id, item] of Object.entries(fields(status.details ?? {}, "status.details")))
    details.set(id, parseDetails(item, `status.details[${JSON.stringify(id)}]`));
  return {
    seq: count(status.seq, "status.seq"),
    elapsed: amount(status.elapsed, "status.elapsed"),
    runId: text(status.run_id, "status.run_id"),
    run: oneOf(status.run, RUN_STATES, "status.run"),
    message: text(status.message, "status.message"),
    nodes,
    details,
    bottleneck: text(status.bottleneck ?? "", "status.bottleneck"),
  };
}

export function parseMessage(value: unknown): Message {
  const message = fields(value, "message");
  const kind = oneOf(message.kind, ["frame", "snapshot", "ack"], "message.kind");
  if (kind === "ack") return { kind, action: oneOf(message.action, ["cancel"], "message.action") };
  return { kind, status: parseStatus(message) };
}

export function parseSavedFlow(value: unknown): SavedFlow {
  const flow = fields(value, "flow");
  const { version } = flow;
  if (version !== 1 && version !== 2) throw new ProtocolError("flow.version", "1 or 2", version);
  return { version, graph: parseGraph(flow.graph), snapshot: parseStatus(flow.snapshot) };
}
