import { expect, test } from "vitest";
import { detailsOf, nodeStatus } from "./testing";
import { band, detailsText, elapsedText, nodeLabel, rateText, shares, shortTime, summary } from "./words";

const draft = { id: "draft", operator: "generate", queue: 8, workers: 1 };

test("a node is told in words", () => {
  expect(nodeLabel(draft, nodeStatus({ depth: 3, peak: 5, rate: 38.2 }))).toBe(
    "draft: running, queue 3 of 8, peak 5, 38 events per second",
  );
  expect(nodeLabel(draft, nodeStatus({ rate: 1 }))).toContain("1 event per second");
  expect(nodeLabel(draft, nodeStatus())).toContain("rate not known");
  expect(nodeLabel(draft, nodeStatus(), true)).toContain(", the bottleneck");
});

test("details are told in one line, and what is rare only where there is any", () => {
  const usual = { busy: 0.66, blocked: 0.335, wait: 0.0123, p95: 2.25, dropped: 3 };
  expect(detailsText(detailsOf(usual))).toBe(
    "busy 66 %, blocked 34 %, idle 0 %, waits 12 ms in the queue, p95 2.3 s, " +
      "first event after N/A, 3 dropped, 0 retries, 0 errors",
  );
  expect(detailsText(detailsOf({ lag: 7.03, held: 0.4 }))).toContain(
    ", 7.0 s behind the arrivals, held the event loop for 400 ms",
  );
});

test("shares add up, also where both are rounded up", () => {
  for (let i = 0; i <= 200; i++) {
    const parts = shares(detailsOf({ busy: i / 200, blocked: 1 - i / 200 }));
    expect(Math.min(...parts)).toBeGreaterThanOrEqual(0);
    expect(parts.reduce((sum, part) => sum + part)).toBe(100);
  }
  expect([null, 0, 0.9994, 1, 75].map(shortTime)).toEqual(["N/A", "0 ms", "999 ms", "1.0 s", "1:15"]);
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
