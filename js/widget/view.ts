/**
 * One view of a flow: header, drawing or table, message, and a line for the screen reader.
 *
 * The store says that something changed; the view draws at most once per animation frame, and four
 * times a second while the page is hidden or the view is off screen, so that what a screen reader,
 * a search or a test reads there is true as well. Everything ends with `signal`.
 */
import { createCancel } from "./cancel";
import { type Canvas, createCanvas } from "./canvas";
import { element, setAttribute, setText } from "./dom";
import type { Graph } from "./protocol";
import type { FlowStore } from "./store";
import { createTable, type Table } from "./table";
import { elapsedText, summary } from "./words";

const ANNOUNCE_EVERY_MS = 1000;
const UNSEEN_EVERY_MS = 250;

export interface ViewOptions {
  /** Ends the view: listeners, timers, frames and DOM. */
  signal: AbortSignal;
  /** Sends the cancel request; without it the view is read-only and has no Cancel button. */
  sendCancel?: () => void;
}

interface Body {
  graph: Graph;
  canvas: Canvas;
  table: Table;
  end: AbortController;
}

export function mountView(parent: HTMLElement, store: FlowStore, { signal, sendCancel }: ViewOptions): void {
  if (signal.aborted) return;
  const name = element("span", { class: "aiflow-graph" });
  const run = element("span", { class: "aiflow-state aiflow-run" });
  const elapsed = element("span", { class: "aiflow-elapsed" });
  const toggle = element(
    "button",
    { type: "button", class: "aiflow-button", "aria-pressed": "false" },
    "Table",
  );
  const header = element("div", { class: "aiflow-header" }, name, run, elapsed);
  const message = element("div", { class: "aiflow-message" });
  const place = element("div", { class: "aiflow-body" });
  const live = element("div", { class: "aiflow-summary", "aria-live": "polite" });
  const root = element(
    "div",
    { class: "aiflow", role: "group", "data-testid": "aiflow-flow" },
    header,
    message,
    place,
    live,
  );
  const cancel = sendCancel && createCancel(store, root, sendCancel, signal);
  header.append(...(cancel ? [cancel.note, cancel.button] : []), toggle);

  let body: Body | undefined;
  let asTable = false;

  const build = (graph: Graph): Body => {
    body?.end.abort();
    const end = new AbortController();
    return {
      graph,
      end,
      canvas: createCanvas(graph, end.signal),
      table: createTable(graph.name, graph.nodes),
    };
  };

  const draw = (): void => {
    if (body?.graph !== store.graph) body = build(store.graph);
    const shown = asTable ? body.table : body.canvas;
    if (place.firstChild !== shown.root) place.replaceChildren(shown.root);
    shown.update(store);
    setAttribute(root, "data-run-state", store.run);
    setAttribute(root, "data-run-id", store.runId);
    setAttribute(root, "aria-label", `graph ${store.graph.name}: ${store.run}`);
    setText(name, store.graph.name);
    setAttribute(name, "title", store.graph.name);
    setAttribute(run, "data-state", store.run);
    setText(run, store.run);
    setText(elapsed, store.run === "ready" ? "" : elapsedText(store.elapsed));
    setText(message, store.message);
    message.hidden = store.message === "";
    cancel?.update();
    announce();
  };

  // Live region: at once, then at most once per interval, and the last word is always said.
  let quiet: ReturnType<typeof setTimeout> | undefined;
  const announce = (): void => {
    if (quiet !== undefined) return;
    const words = summary(
      store.run,
      store.elapsed,
      store.graph.nodes.map((node) => [node, store.node(node.id)]),
    );
    if (live.textContent === words) return;
    live.textContent = words;
    quiet = setTimeout(() => {
      quiet = undefined;
      announce();
    }, ANNOUNCE_EVERY_MS);
  };

  let frame = 0;
  let timer: ReturnType<typeof setTimeout> | undefined;
  let onScreen = true;
  let pending = false;
  const redraw = (): void => {
    cancelAnimationFrame(frame);
    clearTimeout(timer);
    frame = 0;
    timer = undefined;
    pending = false;
    draw();
  };
  const schedule = (): void => {
    pending = true;
    if (frame !== 0) return;
    if (onScreen && !document.hidden) frame = requestAnimationFrame(redraw);
    else timer ??= setTimeout(redraw, UNSEEN_EVERY_MS);
  };
  const resume = (): void => {
    // A frame that was asked for before the page was hidden comes only when it is seen again.
    if (document.hidden) {
      cancelAnimationFrame(frame);
      frame = 0;
    }
    if (pending) schedule();
  };

  toggle.addEventListener(
    "click",
    () => {
      asTable = !asTable;
      toggle.setAttribute("aria-pressed", String(asTable));
      draw();
    },
    { signal },
  );
  document.addEventListener("visibilitychange", resume, { signal });
  if (typeof IntersectionObserver !== "undefined") {
    const observer = new IntersectionObserver((entries) => {
      onScreen = entries.at(-1)?.isIntersecting ?? true;
      resume();
    });
    observer.observe(root);
    signal.addEventListener("abort", () => observer.disconnect(), { once: true });
  }
  signal.addEventListener(
    "abort",
    () => {
      cancelAnimationFrame(frame);
      clearTimeout(timer);
      clearTimeout(quiet);
      body?.end.abort();
      root.remove();
    },
    { once: true },
  );
  store.subscribe(schedule, signal);
  draw();
  parent.append(root);
}
