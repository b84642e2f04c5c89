import { existsSync, statSync } from "node:fs";
import type { AnyModel, InitializeProps, RenderProps } from "@anywidget/types";
import { afterEach, beforeEach, describe, expect, test, vi } from "vitest";
import createWidget from "./index";
import { FakeModel, fixture } from "./testing";

const { kind: _, ...first } = fixture.messages[0] as { kind: string };

let model: FakeModel;
let widgetEnd: AbortController;

beforeEach(() => {
  vi.useFakeTimers();
  model = new FakeModel({ graph: fixture.graph, snapshot: first });
  widgetEnd = new AbortController();
});

afterEach(() => {
  widgetEnd.abort();
  vi.useRealTimers();
});

async function started() {
  const widget = await createWidget();
  const shared = { model: model as unknown as AnyModel, signal: widgetEnd.signal } as unknown;
  await widget.initialize?.(shared as InitializeProps<never>);
  return () => {
    const el = document.createElement("div");
    const end = new AbortController();
    const signal = AbortSignal.any([end.signal, widgetEnd.signal]);
    void widget.render?.({ model, el, signal } as unknown as RenderProps<never>);
    return { el, end, root: el.querySelector("[data-testid=aiflow-flow]") as HTMLElement };
  };
}

const receive = (message: unknown) => {
  model.emit("msg:custom", message, []);
  vi.advanceTimersByTime(17);
};

describe("a view", () => {
  test("draws the traits at once and then says hello, once", async () => {
    const render = await started();
    expect(model.sent).toEqual([]);
    const { root } = render();
    expect(root.dataset.runId).toBe("4f6c1d2e9a7b4c03");
    expect(model.sent).toEqual([{ kind: "hello" }]);
    render();
    expect(model.sent).toHaveLength(2);
  });

  test("says hello again until a snapshot answers", async () => {
    (await started())();
    vi.advanceTimersByTime(1100);
    expect(model.sent).toEqual([{ kind: "hello" }, { kind: "hello" }, { kind: "hello" }]);
    receive(fixture.messages[0]);
    vi.advanceTimersByTime(5000);
    expect(model.sent).toHaveLength(3);
  });

  test("gives up saying hello to a kernel that is gone", async () => {
    (await started())();
    vi.advanceTimersByTime(60_000);
    expect(model.sent.length).toBeLessThanOrEqual(20);
    expect(vi.getTimerCount()).toBe(0);
  });

  test("listens before it says hello", async () => {
    const render = await started();
    const listening: number[] = [];
    model.send = () => void listening.push(model.listeners.get("msg:custom")?.size ?? 0);
    render();
    expect(listening).toEqual([1]);
  });

  test("shows frames; the fixture ends cancelled, with no resync on the way", async () => {
    const { root } = (await started())();
    fixture.messages.forEach(receive);
    expect(root.dataset.runState).toBe("cancelled");
    expect(root.querySelector<HTMLElement>("[data-node=lane]")?.dataset.peak).toBe("8");
    expect(model.sent).toEqual([{ kind: "hello" }]);
  });

  test("shares the state of its model with every other view", async () => {
    const render = await started();
    const [one, two] = [render(), render()];
    fixture.messages.forEach(receive);
    expect(one.root.dataset.runState).toBe("cancelled");
    expect(two.root.dataset.runState).toBe("cancelled");
  });

  test("sends cancel over the comm", async () => {
    const { root } = (await started())();
    root.querySelector<HTMLButtonElement>(".aiflow-cancel")?.click();
    expect(model.sent).toEqual([{ kind: "hello" }, { kind: "cancel" }]);
  });
});

describe("messages lost or broken", () => {
  test("a gap asks for a resync with hello, once", async () => {
    (await started())();
    receive(fixture.messages[1]);
    receive(fixture.messages[3]);
    receive(fixture.messages[4]);
    expect(model.sent).toEqual([{ kind: "hello" }, { kind: "hello" }]);
  });

  test("the snapshot trait closes a gap too", async () => {
    const { root } = (await started())();
    receive(fixture.messages[3]);
    model.set("snapshot", { ...fixture.mime.snapshot, run_id: "4f6c1d2e9a7b4c03" });
    vi.advanceTimersByTime(17);
    expect(root.dataset.runState).toBe("done");
  });

  test("a message that does not parse is dropped, and the widget lives on", async () => {
    const warned = vi.spyOn(console, "warn").mockImplementation(() => {});
    const { root } = (await started())();
    receive({ kind: "frame", seq: "<script>" });
    receive(null);
    expect(warned).toHaveBeenCalledTimes(2);
    fixture.messages.forEach(receive);
    expect(root.dataset.runState).toBe("cancelled");
    warned.mockRestore();
  });

  test("a new graph is drawn", async () => {
    const { root } = (await started())();
    model.set("graph", {
      name: "one",
      nodes: [{ id: "only", operator: "map", queue: 1, workers: 1 }],
      edges: [],
    });
    vi.advanceTimersByTime(17);
    expect(root.querySelectorAll("[data-node]")).toHaveLength(1);
    expect(root.getAttribute("aria-label")).toBe("graph one: running");
  });
});

describe("cleanup", () => {
  test("an aborted view leaves its element empty and the model's listeners to the model", async () => {
    const render = await started();
    const before = model.listening;
    const { el, end } = render();
    expect(model.listening).toBe(before);
    end.abort();
    expect(el.children).toHaveLength(0);
    receive(fixture.messages[1]);
  });

  test("an aborted widget listens to nothing", async () => {
    const { el } = (await started())();
    widgetEnd.abort();
    expect(model.listening).toBe(0);
    expect(el.children).toHaveLength(0);
    expect(vi.getTimerCount()).toBe(0);
  });
});

test("two widgets of one module share no state", async () => {
  const { root } = (await started())();
  const other = new FakeModel({ graph: fixture.graph, snapshot: fixture.mime.snapshot });
  const widget = await createWidget();
  const el = document.createElement("div");
  const props = { model: other, el, signal: widgetEnd.signal } as unknown;
  await widget.initialize?.(props as InitializeProps<never>);
  await widget.render?.(props as RenderProps<never>);
  expect((el.firstElementChild as HTMLElement).dataset.runState).toBe("done");
  expect(root.dataset.runState).toBe("running");
});

const bundle = `${import.meta.dirname}/../../aiflow_jupyter/static/widget.js`;
test.runIf(existsSync(bundle))("the bundle is at most 100 kB", () => {
  expect(statSync(bundle).size).toBeLessThanOrEqual(100 * 1024);
});
