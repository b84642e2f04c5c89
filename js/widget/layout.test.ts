import { describe, expect, test } from "vitest";
import { CARD, layout } from "./layout";
import { parseGraph } from "./protocol";
import { fixture, graphOf } from "./testing";

function overlaps(centres: { x: number; y: number }[]): boolean {
  return centres.some((a, i) =>
    centres.some((b, j) => i < j && Math.abs(a.x - b.x) < CARD.width && Math.abs(a.y - b.y) < CARD.height),
  );
}

const chain = (count: number) => Array.from({ length: count }, (_, i) => `n${i}`);

test("the graph of the fixture fits 1000 x 200 px", () => {
  const placed = layout(parseGraph(fixture.graph));
  expect(placed.width).toBeLessThanOrEqual(1000);
  expect(placed.height).toBeLessThanOrEqual(200);
  expect(overlaps([...placed.nodes.values()])).toBe(false);
});

test("60 nodes are placed inside the drawing and none on another", () => {
  const ids = chain(60);
  const edges = ids.flatMap((id, i) =>
    [i * 2 + 1, i * 2 + 2].filter((to) => to < 60).map((to) => `${id}->n${to}`),
  );
  const placed = layout(graphOf(ids, edges));
  expect(placed.nodes.size).toBe(60);
  expect(placed.edges).toHaveLength(59);
  expect(overlaps([...placed.nodes.values()])).toBe(false);
  for (const { x, y } of placed.nodes.values()) {
    expect(x).toBeGreaterThan(0);
    expect(x).toBeLessThan(placed.width);
    expect(y).toBeGreaterThan(0);
    expect(y).toBeLessThan(placed.height);
  }
});

describe("any shape of graph is drawn", () => {
  test.each([
    ["a single node", graphOf(["a"]), 0],
    ["no node", graphOf([]), 0],
    ["a cycle", graphOf(["a", "b", "c"], ["a->b", "b->c", "c->a"]), 3],
    ["a node that feeds itself", graphOf(["a"], ["a.again->a"]), 1],
    ["two ports to one node", graphOf(["a", "b"], ["a.x->b", "a.y->b"]), 2],
    ["two parts", graphOf(["a", "b", "c", "d"], ["a->b", "c->d"]), 2],
    ["names that objects have", graphOf(["__proto__", "constructor"], ["__proto__->constructor"]), 1],
  ])("%s", (_, graph, edges) => {
    const placed = layout(graph);
    expect(placed.nodes.size).toBe(graph.nodes.length);
    expect(placed.edges).toHaveLength(edges);
    expect(Number.isFinite(placed.width) && Number.isFinite(placed.height)).toBe(true);
    for (const edge of placed.edges) expect(edge.path).toMatch(/^M[-\d.,CL ]+$/);
  });
});

test("edges between the same two nodes do not cover each other", () => {
  const [there, back] = layout(graphOf(["a", "b"], ["a->b", "b->a"])).edges;
  expect(there?.angle).toBe(0);
  expect(back?.angle).toBe(180);
  const [x, y] = layout(graphOf(["a", "b"], ["a.x->b", "a.y->b"])).edges;
  expect(x?.path).not.toBe(y?.path);
});

test("siblings stand in the order they were declared in", () => {
  const { nodes } = layout(graphOf(["a", "first", "second", "third"], ["a->first", "a->second", "a->third"]));
  const heights = ["first", "second", "third"].map((id) => nodes.get(id)?.y as number);
  expect(heights).toEqual([...heights].sort((a, b) => a - b));
});

test("an edge that leads back is marked and enters beside the one that leads on", () => {
  const [on, back] = layout(graphOf(["a", "b"], ["a->b", "b->a"])).edges;
  expect([on?.back, back?.back]).toEqual([false, true]);
  expect(Math.abs((on?.tip.y ?? 0) - (back?.tip.y ?? 0))).toBeGreaterThan(5);
});

test("a long port name is shortened", () => {
  const graph = graphOf(["a", "b"], [`a.${"x".repeat(300)}->b`]);
  expect(layout(graph).edges[0]?.label).toBe(`${"x".repeat(17)}…`);
});

test("a graph is laid out once", () => {
  const placed = layout(graphOf(["a", "b"], ["a->b"]));
  expect(layout(graphOf(["a", "b"], ["a->b"]))).toBe(placed);
  expect(layout(graphOf(["a", "b"], ["b->a"]))).not.toBe(placed);
});
