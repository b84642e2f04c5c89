import { afterEach, beforeEach, describe, expect, test, vi } from "vitest";
import { parseGraph, parseMessage } from "./protocol";
import { FlowStore } from "./store";
import { detailsOf, fixture, graphOf, nodeStatus, status } from "./testing";
import { mountView } from "./view";

let end: AbortController;
let observers: { callback: IntersectionObserverCallback; disconnect: ReturnType<typeof vi.fn> }[];

beforeEach(() => {
  vi.useFakeTimers();
  end = new AbortController();
  observers = [];
  vi.stubGlobal(
    "IntersectionObserver",
    class {
      observe = vi.fn();
      disconnect = vi.fn();
      constructor(callback: IntersectionObserverCallback) {
        observers.push({ callback, disconnect: this.disconnect });
      }
    },
  );
});

afterEach(() => {
  end.abort();
  document.body.replaceChildren();
  vi.unstubAllGlobals();
  vi.useRealTimers();
});

const aFrame = () => vi.advanceTimersByTime(17);

function mounted(graph = parseGraph(fixture.graph), sendCancel: () => void = vi.fn()) {
  const store = new FlowStore();
  store.setGraph(graph);
  store.apply({ kind: "snapshot", status: status(0) });
  mountView(document.body, store, { signal: end.signal, sendCancel });
  const root = document.querySelector("[data-testid=aiflow-flow]") as HTMLElement;
  const frame = (...args: Parameters<typeof status>) => {
    store.apply({ kind: "frame", status: status(...args) });
    aFrame();
  };
  const card = (id: string) =>
    [...root.querySelectorAll<HTMLElement>("[data-node]")].find(
      (node) => node.dataset.node === id,
    ) as HTMLElement;
  const meter = (id: string) => card(id).querySelector("[role=meter]") as HTMLElement;
  const button = (text: string) =>
    [...root.querySelectorAll("button")].find((one) =>
      one.textContent?.startsWith(text),
    ) as HTMLButtonElement;
  const text = (part: string) => root.querySelector(`.aiflow-${part}`)?.textContent;
  return { store, root, frame, card, meter, button, text };
}

describe("the root", () => {
  test("says which graph, which run and its state", () => {
    const { root, frame } = mounted();
    expect(root.getAttribute("role")).toBe("group");
    expect(root.dataset).toMatchObject({ testid: "aiflow-flow", runState: "running", runId: "r1" });
    expect(root.getAttribute("aria-label")).toBe("graph support: running");
    frame(1, { run: "done" });
    expect(root.dataset.runState).toBe("done");
    expect(root.getAttribute("aria-label")).toBe("graph support: done");
  });

  test("shows name, state word and elapsed time", () => {
    const { frame, text } = mounted();
    frame(1, { elapsed: 12.34 });
    expect([text("graph"), text("run"), text("elapsed")]).toEqual(["support", "running", "12.3 s"]);
  });

  test("shows the message only where there is one", () => {
    const { root, frame, text } = mounted();
    const message = root.querySelector(".aiflow-message") as HTMLElement;
    expect(message.hidden).toBe(true);
    frame(1, { run: "failed", message: "<b>no</b> answer" });
    expect(message.hidden).toBe(false);
    expect(text("message")).toBe("<b>no</b> answer");
    expect(message.children).toHaveLength(0);
  });
});

describe("a node", () => {
  test("has a name, an operator, a state word, a rate, and words for a screen reader", () => {
    const { card, frame } = mounted();
    frame(1, {}, { ask: nodeStatus({ depth: 3, peak: 5, rate: 38 }) });
    const ask = card("ask");
    expect(ask.getAttribute("role")).toBe("group");
    expect(ask.getAttribute("aria-label")).toBe("ask: running, queue 3 of 8, peak 5, 38 events per second");
    for (const [part, words] of Object.entries({
      name: "ask",
      operator: "generate",
      state: "running",
      rate: "38/s",
      depth: "3/8",
    }))
      expect(ask.querySelector(`.aiflow-${part}`)?.textContent).toBe(words);
  });

  test("has a gauge of its queue", () => {
    const { card, meter, frame } = mounted();
    frame(1, {}, { ask: nodeStatus({ depth: 3, peak: 5 }) });
    const attributes = (names: string[]) => names.map((name) => meter("ask").getAttribute(name));
    expect(
      attributes([
        "aria-label",
        "aria-valuemin",
        "aria-valuenow",
        "aria-valuemax",
        "aria-valuetext",
        "data-peak",
      ]),
    ).toEqual(["queue of ask", "0", "3", "8", "3 of 8", "5"]);
    expect(card("ask").dataset.peak).toBe("5");
    expect((meter("ask").querySelector(".aiflow-fill") as HTMLElement).style.clipPath).toBe(
      "inset(0 62.5% 0 0)",
    );
    expect((meter("ask").querySelector(".aiflow-peak") as HTMLElement).style.left).toBe("62.5%");
  });

  test("never shows more than its maximum, and tells the peak it saw", () => {
    const { card, meter, frame } = mounted();
    frame(1, {}, { ask: nodeStatus({ depth: 99, peak: 3 }) });
    expect(meter("ask").getAttribute("aria-valuenow")).toBe("8");
    expect(meter("ask").getAttribute("aria-valuetext")).toBe("8 of 8");
    expect(card("ask").querySelector(".aiflow-depth")?.textContent).toBe("8/8");
    expect((meter("ask").querySelector(".aiflow-fill") as HTMLElement).style.clipPath).toBe(
      "inset(0 0% 0 0)",
    );
    expect((meter("ask").querySelector(".aiflow-peak") as HTMLElement).style.left).toBe("100%");
    expect(card("ask").dataset.peak).toBe("99");
    expect(meter("ask").dataset.peak).toBe("99");
  });

  test("has a band for its pattern", () => {
    const { meter, frame } = mounted();
    const bands = [4, 6, 7].map((depth, i) => {
      frame(i + 1, {}, { ask: nodeStatus({ depth }) });
      return meter("ask").dataset.band;
    });
    expect(bands).toEqual(["low", "high", "full"]);
  });

  test.each([
    ["an element", '<img src=x onerror="alert(1)">'],
    ["quotes", `a"b'c\\d`],
    ["a very long name", "x".repeat(5000)],
    ["another script", "узел 节点 🜂 \u202e"],
    ["a property of objects", "__proto__"],
    ["no name", ""],
  ])("may be named as %s, which stays text", (_, id) => {
    const { root, card, button } = mounted(graphOf([id, "b"], [`${id || "b"}->b`]));
    expect(root.querySelector("img")).toBeNull();
    expect(card(id).querySelector(".aiflow-name")?.textContent).toBe(id);
    expect(card(id).querySelector(".aiflow-name")?.children).toHaveLength(0);
    button("Table").click();
    expect(root.querySelector("tbody th")?.textContent).toBe(id);
    expect(root.querySelector("img")).toBeNull();
  });
});

test("edges show their ports", () => {
  const { root } = mounted();
  expect([...root.querySelectorAll(".aiflow-port")].map((port) => port.textContent)).toEqual([
    "answer",
    "reasoning",
  ]);
  expect(root.querySelectorAll(".aiflow-edge")).toHaveLength(5);
});

describe("the keyboard", () => {
  const press = (key: string) =>
    document.activeElement?.dispatchEvent(
      new KeyboardEvent("keydown", { key, bubbles: true, cancelable: true }),
    );
  const focused = () => (document.activeElement as HTMLElement).dataset.node;

  test("finds one tab stop, which follows the focus", () => {
    const { root, card } = mounted();
    const stops = () => [...root.querySelectorAll("[data-node][tabindex='0']")];
    expect(stops()).toEqual([card("ask")]);
    card("safe").focus();
    expect(stops()).toEqual([card("safe")]);
  });

  test("moves along edges, between nodes, and to the ends", () => {
    const { card } = mounted();
    card("ask").focus();
    const walk = [
      "ArrowRight",
      "ArrowRight",
      "ArrowRight",
      "ArrowLeft",
      "End",
      "ArrowLeft",
      "Home",
      "ArrowLeft",
    ];
    const seen = walk.map((key) => {
      press(key);
      return focused();
    });
    expect(seen[0]).toBe("lane");
    expect(["parts", "notes"]).toContain(seen[1]);
    expect(seen.slice(4)).toEqual(["notes", "lane", "ask", "ask"]);
  });

  test("moves up and down between branches", () => {
    const { card } = mounted(graphOf(["a", "b", "c"], ["a->b", "a->c"]));
    const upper = [card("b"), card("c")].sort(
      (x, y) => Number.parseFloat(x.style.top) - Number.parseFloat(y.style.top),
    );
    upper[0]?.focus();
    press("ArrowDown");
    expect(document.activeElement).toBe(upper[1]);
    press("ArrowUp");
    expect(document.activeElement).toBe(upper[0]);
  });

  test("keeps the arrows from the notebook, and leaves other keys to it", () => {
    const { card } = mounted();
    const outer = vi.fn();
    document.body.addEventListener("keydown", outer, { signal: end.signal });
    card("ask").focus();
    press("ArrowDown");
    expect(outer).not.toHaveBeenCalled();
    press("a");
    expect(outer).toHaveBeenCalledTimes(1);
  });

  test("goes round a cycle and stays on a single node", () => {
    const { card } = mounted(graphOf(["a", "b"], ["a->b", "b->a"]));
    card("a").focus();
    press("ArrowRight");
    press("ArrowRight");
    expect(focused()).toBe("a");
  });
});

describe("Cancel", () => {
  test("asks over the comm and by a DOM event, once, and is disabled at once", () => {
    const send = vi.fn();
    const { button } = mounted(undefined, send);
    const heard = vi.fn();
    document.addEventListener(
      "aiflow:cancel",
      (event) => heard((event as CustomEvent).detail, event.composed),
      {
        signal: end.signal,
      },
    );
    const cancel = button("Cancel");
    cancel.click();
    cancel.click();
    expect(cancel.disabled).toBe(true);
    expect(cancel.textContent).toBe("Cancelling…");
    expect(send).toHaveBeenCalledTimes(1);
    expect(heard.mock.calls).toEqual([[{ run_id: "r1" }, true]]);
  });

  test("points to Stop when nothing answers within 500 ms", () => {
    const { button, text } = mounted();
    button("Cancel").click();
    vi.advanceTimersByTime(499);
    expect(text("note")).toBe("");
    vi.advanceTimersByTime(1);
    expect(text("note")).toBe("kernel busy - use Stop");
  });

  test("needs no such note after an ack", () => {
    const { store, button, text } = mounted();
    button("Cancel").click();
    store.apply(parseMessage({ kind: "ack", action: "cancel" }));
    vi.advanceTimersByTime(2000);
    expect(text("note")).toBe("");
    expect(button("Cancelling…").disabled).toBe(true);
  });

  test("needs no such note after the end of the run", () => {
    const { button, frame, text } = mounted();
    button("Cancel").click();
    frame(1, { run: "cancelled" });
    vi.advanceTimersByTime(2000);
    expect(text("note")).toBe("");
  });

  test("takes the note back when the answer comes late", () => {
    const { store, button, text } = mounted();
    button("Cancel").click();
    vi.advanceTimersByTime(600);
    store.apply(parseMessage({ kind: "ack", action: "cancel" }));
    aFrame();
    expect(text("note")).toBe("");
  });

  test.each(["ready", "done", "failed", "cancelled"] as const)("is away while the run is %s", (run) => {
    const { root, frame } = mounted();
    const cancel = root.querySelector(".aiflow-cancel") as HTMLButtonElement;
    expect([cancel.hidden, cancel.disabled]).toEqual([false, false]);
    frame(1, { run });
    expect([cancel.hidden, cancel.disabled]).toEqual([true, true]);
  });

  test("still dispatches its event where the comm is closed", () => {
    const { button } = mounted(undefined, () => {
      throw new Error("comm is closed");
    });
    const heard = vi.fn();
    document.addEventListener("aiflow:cancel", heard, { signal: end.signal });
    window.addEventListener("error", (event) => event.preventDefault(), { signal: end.signal });
    button("Cancel").click();
    expect(heard).toHaveBeenCalledTimes(1);
  });

  test("does not exist in a read-only view", () => {
    const store = new FlowStore();
    store.setGraph(parseGraph(fixture.graph));
    store.apply({ kind: "snapshot", status: status(0) });
    mountView(document.body, store, { signal: end.signal });
    expect(document.querySelector(".aiflow-cancel")).toBeNull();
  });
});

describe("details", () => {
  const details = new Map([["ask", detailsOf({ busy: 0.25, retries: 2 })]]);
  const words = "busy 25 %, blocked 0 %, idle 75 %";

  test("describe their card to a screen reader, by an id of its own", () => {
    const { root, card, frame } = mounted();
    frame(1, { details });
    const ids = [...root.querySelectorAll("[data-node]")].map((one) => one.getAttribute("aria-describedby"));
    expect(new Set(ids).size).toBe(6);
    const described = document.getElementById(card("ask").getAttribute("aria-describedby") as string);
    expect(described?.textContent).toContain(words);
    expect(described?.textContent).toContain("2 retries");
  });

  test("are shown of the node that is focused, or pointed at, and stay up to date", () => {
    const { card, frame, text } = mounted();
    frame(1, { details });
    expect(text("details")).toContain("Point at a node");
    card("ask").focus();
    expect(text("details")).toContain(`ask: ${words}`);
    frame(2, { details: new Map([["ask", detailsOf({ busy: 1 })]]) });
    expect(text("details")).toContain("ask: busy 100 %");
    const stage = card("lane").parentElement as HTMLElement;
    card("lane").dispatchEvent(new Event("pointerover", { bubbles: true }));
    expect(text("details")).toBe("lane: no figures yet");
    stage.dispatchEvent(new Event("pointerleave"));
    expect(text("details")).toContain("ask: busy 100 %");
    card("ask").blur();
    expect(text("details")).toContain("Point at a node");
  });

  test("of another run are gone with its snapshot", () => {
    const { store, card, frame } = mounted();
    frame(1, { details, bottleneck: "ask" });
    store.apply({ kind: "snapshot", status: status(0, { runId: "r2" }) });
    aFrame();
    expect(card("ask").dataset.bottleneck).toBe("false");
    expect(store.detailsOf("ask")).toBeUndefined();
  });
});

describe("the bottleneck", () => {
  const details = new Map([["ask", detailsOf({ words: "ask is the bottleneck: busy 97%" })]]);

  test("is marked by a word, in its label, and said below", () => {
    const { root, card, frame, text } = mounted();
    const advice = root.querySelector(".aiflow-advice") as HTMLElement;
    frame(1, {}, { ask: nodeStatus() });
    expect(advice.hidden).toBe(true);
    frame(2, { bottleneck: "ask", details });
    const mark = card("ask").querySelector(".aiflow-mark") as HTMLElement;
    expect([mark.hidden, mark.textContent]).toEqual([false, "bottleneck"]);
    expect((card("ask").querySelector(".aiflow-rate") as HTMLElement).hidden).toBe(true);
    expect(card("ask").getAttribute("aria-label")).toContain("the bottleneck");
    expect(root.querySelectorAll('[data-bottleneck="true"]')).toHaveLength(1);
    expect([advice.hidden, text("advice")]).toEqual([false, "ask is the bottleneck: busy 97%"]);
    frame(3, { bottleneck: "" });
    expect([mark.hidden, advice.hidden]).toEqual([true, true]);
    expect(card("ask").getAttribute("aria-label")).not.toContain("bottleneck");
  });
});

describe("the table", () => {
  test("has the same data, and the button says whether it is shown", () => {
    const { root, button, frame } = mounted();
    const details = new Map([
      ["ask", detailsOf({ busy: 0.5, wait: 0.04, p95: 0.008, first: 1.5, dropped: 7 })],
    ]);
    frame(1, { details }, { ask: nodeStatus({ depth: 3, peak: 5, processed: 40, rate: 38 }) });
    expect(button("Table").getAttribute("aria-pressed")).toBe("false");
    button("Table").click();
    expect(button("Table").getAttribute("aria-pressed")).toBe("true");
    expect(root.querySelectorAll("thead th[scope=col]")).toHaveLength(15);
    expect(root.querySelectorAll("tbody tr")).toHaveLength(6);
    const row = root.querySelector("tbody tr") as HTMLElement;
    expect([...row.children].map((cell) => cell.textContent)).toEqual([
      "ask",
      "generate",
      "running",
      "3 of 8",
      "5",
      "40",
      "38/s",
      "1",
      "50 / 0 / 50 %",
      "40 ms",
      "8 ms",
      "1.5 s",
      "7",
      "0",
      "0",
    ]);
    frame(2, { bottleneck: "ask" });
    expect(row.children[2]?.textContent).toBe("running, bottleneck");
    expect(root.querySelectorAll("tbody tr")[1]?.textContent).toContain("N/A");
    frame(3, {}, { ask: nodeStatus({ depth: 4 }) });
    expect(row.children[3]?.textContent).toBe("4 of 8");
  });

  test("gives way to a drawing that is up to date", () => {
    const { card, button, frame } = mounted();
    button("Table").click();
    frame(1, {}, { ask: nodeStatus({ depth: 6 }) });
    button("Table").click();
    expect(card("ask").querySelector(".aiflow-depth")?.textContent).toBe("6/8");
  });
});

describe("drawing", () => {
  const scroll = (isIntersecting: boolean) =>
    observers[0]?.callback([{ isIntersecting } as IntersectionObserverEntry], {} as IntersectionObserver);

  test("happens once per animation frame, however many frames came", () => {
    const { store } = mounted();
    const asked = vi.spyOn(globalThis, "requestAnimationFrame");
    for (let seq = 1; seq < 20; seq++) store.apply({ kind: "frame", status: status(seq) });
    expect(asked).toHaveBeenCalledTimes(1);
  });

  test("changes attributes and text, and builds nothing", () => {
    const { root, frame } = mounted();
    const before = [...root.querySelectorAll("*")];
    for (const [i, message] of fixture.messages.entries()) {
      const parsed = parseMessage(message);
      if (parsed.kind === "frame")
        frame(i, { run: parsed.status.run }, Object.fromEntries(parsed.status.nodes));
    }
    expect([...root.querySelectorAll("*")]).toEqual(before);
  });

  test("waits off screen and catches up at once when it comes back", () => {
    const { card, frame } = mounted();
    scroll(false);
    frame(1, {}, { ask: nodeStatus({ depth: 6 }) });
    expect(card("ask").querySelector(".aiflow-depth")?.textContent).toBe("0/8");
    scroll(true);
    aFrame();
    expect(card("ask").querySelector(".aiflow-depth")?.textContent).toBe("6/8");
  });

  test("asks for no frame while the page is hidden", () => {
    const { card, frame } = mounted();
    const hidden = vi.spyOn(document, "hidden", "get").mockReturnValue(true);
    frame(1, {}, { ask: nodeStatus({ depth: 6 }) });
    expect(card("ask").querySelector(".aiflow-depth")?.textContent).toBe("0/8");
    hidden.mockRestore();
    document.dispatchEvent(new Event("visibilitychange"));
    aFrame();
    expect(card("ask").querySelector(".aiflow-depth")?.textContent).toBe("6/8");
  });

  test("goes on slowly off screen, so that what is read there is true", () => {
    const { root, card, frame } = mounted();
    scroll(false);
    frame(1, {}, { ask: nodeStatus({ depth: 6 }) });
    vi.advanceTimersByTime(300);
    expect(card("ask").querySelector(".aiflow-depth")?.textContent).toBe("6/8");
    frame(2, { run: "done" });
    vi.advanceTimersByTime(300);
    expect(root.dataset.runState).toBe("done");
  });

  test("starts anew with a new graph", () => {
    const { store, root } = mounted();
    store.setGraph(graphOf(["x", "y"], ["x->y"]));
    aFrame();
    expect([...root.querySelectorAll<HTMLElement>("[data-node]")].map((node) => node.dataset.node)).toEqual([
      "x",
      "y",
    ]);
  });
});

describe("the live region", () => {
  test("speaks at most once a second, and says the last word", () => {
    const { root, frame } = mounted();
    const live = root.querySelector("[aria-live=polite]") as HTMLElement;
    vi.advanceTimersByTime(1000);
    frame(1, {}, { ask: nodeStatus() });
    expect(live.textContent).toBe("ask running");
    frame(2, {}, { ask: nodeStatus({ state: "blocked" }) });
    frame(3, { run: "done", elapsed: 4.2 });
    expect(live.textContent).toBe("ask running");
    vi.advanceTimersByTime(1000);
    expect(live.textContent).toBe("done in 4.2 s");
  });
});

test("an aborted view leaves nothing: no DOM, no observer, no timer, no drawing", () => {
  const { store, root, button } = mounted();
  button("Cancel").click();
  store.apply({ kind: "frame", status: status(1) });
  end.abort();
  expect(document.body.children).toHaveLength(0);
  expect(observers[0]?.disconnect).toHaveBeenCalledTimes(1);
  expect(vi.getTimerCount()).toBe(0);
  store.apply({ kind: "frame", status: status(2, { run: "done" }) });
  aFrame();
  expect(root.dataset.runState).toBe("running");
});

test("a view whose signal is already aborted is never mounted", () => {
  end.abort();
  mountView(document.body, new FlowStore(), { signal: end.signal });
  expect(document.body.children).toHaveLength(0);
});
