import { describe, expect, test } from "vitest";
import { ProtocolError, parseGraph, parseMessage, parseSavedFlow, parseStatus } from "./protocol";
import { fixture } from "./testing";

const good = fixture.messages[0] as Record<string, unknown>;

describe("the fixture both halves read", () => {
  test("parses, every message and the saved flow", () => {
    expect(parseGraph(fixture.graph).nodes).toHaveLength(6);
    expect(fixture.messages.map((message) => parseMessage(message).kind)).toEqual([
      "snapshot",
      "frame",
      "frame",
      "frame",
      "frame",
      "ack",
      "frame",
    ]);
    expect(parseSavedFlow(fixture.mime).snapshot.run).toBe("done");
  });

  test("keeps a status as it was sent", () => {
    const frame = parseMessage(fixture.messages[2]);
    if (frame.kind !== "frame") throw new Error(frame.kind);
    expect(frame.status).toMatchObject({ seq: 2, elapsed: 0.375, runId: "4f6c1d2e9a7b4c03", run: "running" });
    expect(frame.status.nodes.get("lane")).toEqual({
      state: "running",
      depth: 2,
      peak: 3,
      processed: 14,
      rate: 36,
    });
  });
});

test("details are read by their places, and stand only where they changed", () => {
  const [before, at] = [3, 4].map((i) => parseMessage(fixture.messages[i]));
  if (before?.kind !== "frame" || at?.kind !== "frame") throw new Error("no frames");
  expect(before.status.details.size).toBe(0);
  expect(at.status.bottleneck).toBe("safe");
  expect(at.status.details.get("parts")).toEqual({
    dropped: 0,
    retries: 0,
    errors: 0,
    busy: 0.1,
    blocked: 0.6,
    wait: 0.214,
    p95: 0.0005,
    first: 0.301,
    lag: null,
    held: null,
    words: "",
  });
});

test("a flow that was saved by the first version is read, without what it lacks", () => {
  const { details: _details, bottleneck: _bottleneck, ...snapshot } = fixture.mime.snapshot;
  const saved = parseSavedFlow({ ...fixture.mime, version: 1, snapshot });
  expect([saved.snapshot.details.size, saved.snapshot.bottleneck]).toEqual([0, ""]);
});

describe("what the parser refuses", () => {
  test.each([
    ["no object", null],
    ["a list", []],
    ["an unknown kind", { ...good, kind: "html" }],
    ["an unknown run state", { ...good, run: "<b>" }],
    ["a sequence that is no integer", { ...good, seq: 1.5 }],
    ["a negative time", { ...good, elapsed: -1 }],
    ["a message that is no text", { ...good, message: { html: "x" } }],
    ["a missing run id", { ...good, run_id: undefined }],
    ["nodes as a list", { ...good, nodes: [] }],
    ["an unknown node state", { ...good, nodes: { ask: ["busy", 0, 0, 0, null] } }],
    ["a depth below zero", { ...good, nodes: { ask: ["idle", -1, 0, 0, null] } }],
    ["a rate that is no number", { ...good, nodes: { ask: ["idle", 0, 0, 0, "9"] } }],
    ["a rate left out", { ...good, nodes: { ask: ["idle", 0, 0, 0] } }],
    ["details as a list", { ...good, details: [1] }],
    ["details that end early", { ...good, details: { ask: [0, 0, 0, 0, 0, null, null, null, null, null] } }],
    ["a share below zero", { ...good, details: { ask: [0, 0, 0, -1, 0, null, null, null, null, null, ""] } }],
    ["words that are none", { ...good, details: { ask: [0, 0, 0, 0, 0, null, null, null, null, null, {}] } }],
    ["a bottleneck that is no text", { ...good, bottleneck: 1 }],
    ["an ack of something else", { kind: "ack", action: "pause" }],
  ])("%s", (_, value) => {
    expect(() => parseMessage(value)).toThrow(ProtocolError);
  });

  test.each([
    ["an edge to nowhere", { ...fixture.graph, edges: [{ from: "ask", port: null, to: "none" }] }],
    ["two nodes of one name", { ...fixture.graph, nodes: [fixture.graph.nodes[0], fixture.graph.nodes[0]] }],
    [
      "a queue without a bound",
      { name: "g", nodes: [{ id: "a", operator: "map", queue: 0, workers: 1 }], edges: [] },
    ],
  ])("%s", (_, value) => {
    expect(() => parseGraph(value)).toThrow(ProtocolError);
  });

  test("a saved flow of another version", () => {
    expect(() => parseSavedFlow({ ...fixture.mime, version: 3 })).toThrow("flow.version");
  });

  test("an error names the place", () => {
    const bad = { ...good, nodes: { 'a"b': ["idle", 0, 0, 0, "9"] } };
    expect(() => parseMessage(bad)).toThrow('status.nodes["a\\"b"][4]: expected a number');
  });
});

test("a node may be named as anything an object already has", () => {
  const nodes = JSON.parse('{"__proto__": ["idle", 1, 2, 3, null], "constructor": ["done", 0, 0, 0, 1]}');
  const parsed = parseStatus({ ...good, nodes }).nodes;
  expect(parsed.get("__proto__")?.peak).toBe(2);
  expect(parsed.get("constructor")?.state).toBe("done");
});
