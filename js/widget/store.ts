/**
 * The state of one flow, apart from any view of it.
 *
 * Snapshots replace it, frames change it, and a hole in the sequence asks for a resync. Values in
 * frames are absolute, so a frame after a hole is shown at once; it is also held, and replayed
 * when the snapshot that closes the hole turns out to be older than the frame.
 *
 * The store knows no DOM, no clock and no comm: `requestResync` is passed in, and every view that
 * subscribes reads the same fields. One model has one store however many views it has.
 */
import type { Details, Graph, Message, NodeStatus, RunState, Status } from "./protocol";

/** More frames than a second brings: an older hole is closed by the snapshot anyway. */
const HELD_FRAMES = 64;

const IDLE: NodeStatus = { state: "idle", depth: 0, peak: 0, processed: 0, rate: null };

export type CancelState = "none" | "requested" | "acknowledged";

export function isFinal(run: RunState): boolean {
  return run === "done" || run === "failed" || run === "cancelled";
}

export class FlowStore {
  graph: Graph = { name: "", nodes: [], edges: [] };
  run: RunState = "ready";
  runId = "";
  elapsed = 0;
  message = "";
  cancel: CancelState = "none";
  /** The node that holds others up, or "". */
  bottleneck = "";

  private seq = -1;
  private waiting = true;
  private held: Status[] = [];
  private nodes = new Map<string, NodeStatus>();
  private details = new Map<string, Details>();
  private readonly listeners = new Set<() => void>();

  constructor(private readonly requestResync: () => void = () => {}) {}

  subscribe(listener: () => void, signal: AbortSignal): void {
    if (signal.aborted) return;
    this.listeners.add(listener);
    signal.addEventListener("abort", () => this.listeners.delete(listener), { once: true });
  }

  node(id: string): NodeStatus {
    return this.nodes.get(id) ?? IDLE;
  }

  /** A node's details, once they are known. */
  detailsOf(id: string): Details | undefined {
    return this.details.get(id);
  }

  setGraph(graph: Graph): void {
    this.graph = graph;
    this.changed();
  }

  /** The user asked to cancel this run; a final state or a new run ends the matter. */
  requestCancel(): void {
    if (this.run !== "running" || this.cancel !== "none") return;
    this.cancel = "requested";
    this.changed();
  }

  apply(message: Message): void {
    if (message.kind === "frame") this.applyFrame(message.status);
    else if (message.kind === "snapshot") this.applySnapshot(message.status);
    else if (this.cancel === "requested") this.cancel = "acknowledged";
    this.changed();
  }

  private applyFrame(frame: Status): void {
    const sameRun = frame.runId === this.runId;
    if (sameRun && frame.seq <= this.seq) return;
    const hole = !sameRun || frame.seq > this.seq + 1;
    if (hole || this.waiting) {
      this.held.push(frame);
      if (this.held.length > HELD_FRAMES) this.held.shift();
    }
    if (sameRun) this.merge(frame);
    // One request until it is answered: what is asked while waiting, the replay finds again.
    if (hole && !this.waiting) {
      this.waiting = true;
      this.requestResync();
    }
  }

  private applySnapshot(snapshot: Status): void {
    const sameRun = snapshot.runId === this.runId;
    if (sameRun && !this.waiting && snapshot.seq < this.seq) return;
    const before = this.nodes;
    this.nodes = new Map();
    this.details = new Map();
    if (!sameRun) this.cancel = "none";
    // The peak a view has shown for a run never falls, whichever message it came by.
    if (sameRun) for (const [id, node] of before) this.nodes.set(id, { ...IDLE, peak: node.peak });
    this.runId = snapshot.runId;
    this.merge(snapshot);
    this.waiting = false;
    const held = this.held;
    this.held = [];
    for (const frame of held) if (frame.runId === this.runId) this.applyFrame(frame);
  }

  private merge(status: Status): void {
    this.seq = status.seq;
    this.run = status.run;
    this.elapsed = status.elapsed;
    this.message = status.message;
    for (const [id, node] of status.nodes)
      this.nodes.set(id, { ...node, peak: Math.max(node.peak, node.depth, this.node(id).peak) });
    for (const [id, details] of status.details) this.details.set(id, details);
    this.bottleneck = status.bottleneck;
    if (isFinal(status.run)) this.cancel = "none";
  }

  private changed(): void {
    for (const listener of [...this.listeners]) listener();
  }
}
