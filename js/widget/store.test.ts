import { describe, expect, test, vi } from "vitest";
import { FlowStore } from "./store";
import { nodeStatus, status } from "./testing";

function started() {
  const resync = vi.fn();
  const store = new FlowStore(resync);
  const snapshot = (...args: Parameters<typeof status>) =>
    store.apply({ kind: "snapshot", status: status(...args) });
  const frame = (...args: Parameters<typeof status>) =>
    store.apply({ kind: "frame", status: status(...args) });
  snapshot(0, {}, { a: nodeStatus({ depth: 1, peak: 1 }), b: nodeStatus() });
  return { store, resync, snapshot, frame };
}

describe("frames", () => {
  test("change only the nodes they carry", () => {
    const { store, frame } = started();
    frame(1, {}, { b: nodeStatus({ depth: 4, peak: 4 }) });
    expect(store.node("a").depth).toBe(1);
    expect(store.node("b").depth).toBe(4);
    expect(store.elapsed).toBe(0.1);
  });

  test("in sequence ask for nothing", () => {
    const { resync, frame } = started();
    frame(1);
    frame(2);
    expect(resync).not.toHaveBeenCalled();
  });

  test("that are old are ignored", () => {
    const { store, frame, resync } = started();
    frame(1, {}, { a: nodeStatus({ depth: 5 }) });
    frame(1, {}, { a: nodeStatus({ depth: 2 }) });
    frame(0, {}, { a: nodeStatus({ depth: 3 }) });
    expect(store.node("a").depth).toBe(5);
    expect(resync).not.toHaveBeenCalled();
  });
});

describe("a hole in the sequence", () => {
  test("asks once for a resync and shows the frame at once", () => {
    const { store, frame, resync } = started();
    frame(3, {}, { a: nodeStatus({ depth: 3 }) });
    frame(4);
    frame(6);
    expect(resync).toHaveBeenCalledTimes(1);
    expect(store.node("a").depth).toBe(3);
  });

  test("is closed by a snapshot", () => {
    const { store, frame, snapshot, resync } = started();
    frame(3);
    snapshot(4, {}, { a: nodeStatus(), b: nodeStatus({ depth: 7 }) });
    frame(5);
    expect(store.node("b").depth).toBe(7);
    expect(resync).toHaveBeenCalledTimes(1);
  });

  test("keeps frames newer than the snapshot that answers it", () => {
    const { store, frame, snapshot, resync } = started();
    frame(3, {}, { a: nodeStatus({ depth: 3 }) });
    frame(4, {}, { a: nodeStatus({ depth: 6 }) });
    snapshot(3, {}, { a: nodeStatus({ depth: 3 }), b: nodeStatus({ depth: 2 }) });
    expect(store.node("a").depth).toBe(6);
    expect(store.node("b").depth).toBe(2);
    frame(5);
    expect(resync).toHaveBeenCalledTimes(1);
  });

  test("that the snapshot does not close is asked about again", () => {
    const { frame, snapshot, resync } = started();
    frame(5);
    snapshot(2);
    expect(resync).toHaveBeenCalledTimes(2);
  });

  test("is what a frame of another run is", () => {
    const { store, frame, snapshot, resync } = started();
    frame(1, { runId: "r2" }, { a: nodeStatus({ depth: 8 }) });
    expect(resync).toHaveBeenCalledTimes(1);
    expect(store.runId).toBe("r1");
    snapshot(0, { runId: "r2" });
    expect(store.runId).toBe("r2");
    expect(store.node("a").depth).toBe(8);
    expect(resync).toHaveBeenCalledTimes(1);
  });
});

describe("snapshots", () => {
  test("of this run that are old are ignored", () => {
    const { store, frame, snapshot } = started();
    frame(1, { run: "done" });
    snapshot(0);
    expect(store.run).toBe("done");
  });

  test("of a new run replace everything", () => {
    const { store, snapshot } = started();
    snapshot(0, { runId: "r2", run: "ready" }, {});
    expect(store.node("a")).toEqual({ state: "idle", depth: 0, peak: 0, processed: 0, rate: null });
  });
});

describe("the peak", () => {
  test("is the highest of what the kernel says and what was seen", () => {
    const { store, frame } = started();
    frame(1, {}, { a: nodeStatus({ depth: 7, peak: 5 }) });
    expect(store.node("a").peak).toBe(7);
    frame(2, {}, { a: nodeStatus({ depth: 1, peak: 5 }) });
    expect(store.node("a").peak).toBe(7);
  });

  test("survives a resync, and ends with its run", () => {
    const { store, frame, snapshot } = started();
    frame(1, {}, { a: nodeStatus({ depth: 7 }) });
    snapshot(2, {}, { a: nodeStatus({ peak: 2 }) });
    expect(store.node("a").peak).toBe(7);
    snapshot(0, { runId: "r2" }, { a: nodeStatus({ peak: 1 }) });
    expect(store.node("a").peak).toBe(1);
  });
});

describe("cancel", () => {
  test("is requested, acknowledged, and over with the run", () => {
    const { store, frame } = started();
    store.requestCancel();
    expect(store.cancel).toBe("requested");
    store.apply({ kind: "ack", action: "cancel" });
    expect(store.cancel).toBe("acknowledged");
    frame(1, { run: "cancelled" });
    expect(store.cancel).toBe("none");
  });

  test("is nothing while no run goes on", () => {
    const { store, frame } = started();
    frame(1, { run: "done" });
    store.requestCancel();
    expect(store.cancel).toBe("none");
  });
});

test("a subscriber hears of changes until its signal aborts", () => {
  const { store, frame } = started();
  const end = new AbortController();
  const heard = vi.fn();
  store.subscribe(heard, end.signal);
  frame(1);
  end.abort();
  frame(2);
  expect(heard).toHaveBeenCalledTimes(1);
});
