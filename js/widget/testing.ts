/**
 * What the tests share: the fixture both halves read, a fake model, and statuses in one line.
 */
import fixture from "../../tests/data/frames.json";
import type { Details, Graph, NodeStatus, Status } from "./protocol";

export { fixture };

type Listener = (...values: unknown[]) => void;

export class FakeModel {
  sent: unknown[] = [];
  listeners = new Map<string, Set<Listener>>();

  constructor(private readonly state: Record<string, unknown>) {}

  get = (key: string): unknown => this.state[key];
  send = (content: unknown): void => void this.sent.push(structuredClone(content));
  on = (event: string, listener: Listener): void => {
    this.listeners.set(event, (this.listeners.get(event) ?? new Set()).add(listener));
  };
  off = (event: string, listener: Listener): void => void this.listeners.get(event)?.delete(listener);

  /** A trait changes as the kernel changes it. */
  set(key: string, value: unknown): void {
    this.state[key] = value;
    this.emit(`change:${key}`);
  }

  emit(event: string, ...values: unknown[]): void {
    for (const listener of this.listeners.get(event) ?? []) listener(...values);
  }

  get listening(): number {
    return [...this.listeners.values()].reduce((sum, set) => sum + set.size, 0);
  }
}

/** A graph of one operator, its edges written "a->b" or "a.port->b". */
export function graphOf(ids: string[], edges: string[] = [], queue = 8): Graph {
  return {
    name: "g",
    nodes: ids.map((id) => ({ id, operator: "map", queue, workers: 1 })),
    edges: edges.map((edge) => {
      const [, from, port, to] = /^(.+?)(?:\.(\w+))?->(.+)$/.exec(edge) as unknown as string[];
      return { from: from as string, port: port ?? null, to: to as string };
    }),
  };
}

export function nodeStatus(change: Partial<NodeStatus> = {}): NodeStatus {
  return { state: "running", depth: 0, peak: 0, processed: 0, rate: null, ...change };
}

export function detailsOf(change: Partial<Details> = {}): Details {
  const none = { wait: null, p95: null, first: null, lag: null, held: null };
  return { dropped: 0, retries: 0, errors: 0, busy: 0, blocked: 0, ...none, words: "", ...change };
}

export function status(seq: number, change: Partial<Omit<Status, "nodes">> = {}, nodes = {}): Status {
  return {
    seq,
    elapsed: seq / 10,
    runId: "r1",
    run: "running",
    message: "",
    details: new Map(),
    bottleneck: "",
    ...change,
    nodes: new Map(Object.entries(nodes)),
  };
}
