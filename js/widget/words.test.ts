import { expect, test } from "vitest";
import { nodeStatus } from "./testing";
import { band, elapsedText, nodeLabel, rateText, summary } from "./words";

const draft = { id: "draft", operator: "generate", queue: 8, workers: 1 };

test("a node is told in words", () => {
  expect(nodeLabel(draft, nodeStatus({ depth: 3, peak: 5, rate: 38.2 }))).toBe(
    "draft: running, queue 3 of 8, peak 5, 38 events per second",
  );
  expect(nodeLabel(draft, nodeStatus({ rate: 1 }))).toContain("1 event per second");
  expect(nodeLabel(draft, nodeStatus())).toContain("rate not known");
});

test("the bands end at 60 and 85 percent, both included", () => {
  expect([0, 60, 61, 85, 86, 100].map((value) => band(value, 100))).toEqual([
    "low",
    "low",
    "high",
    "high",
    "full",
    "full",
  ]);
});

test("rates and times are short", () => {
  expect([null, 0, 2.55, 38.4].map(rateText)).toEqual(["N/A", "0/s", "2.6/s", "38/s"]);
  expect([0, 4.21, 61, 3723].map(elapsedText)).toEqual(["0.0 s", "4.2 s", "1:01", "1:02:03"]);
});

test("the summary of a run that goes on holds no number that ticks", () => {
  const nodes = [[draft, nodeStatus({ state: "blocked", processed: 9 })] as const].map(
    ([node, state]): [typeof draft, ReturnType<typeof nodeStatus>] => [node, state],
  );
  expect(summary("running", 1.2, nodes)).toBe("draft blocked");
  expect(summary("running", 9.9, nodes)).toBe("draft blocked");
  expect(summary("done", 9.9, nodes)).toBe("done in 9.9 s");
});
