/**
 * The anywidget module: joins the model of a flow to its store, and the store to its views.
 *
 * The default export is a factory, so that the store made in `initialize` belongs to one widget
 * even where a host evaluates this module once for many. Messages that do not parse are dropped
 * with a warning: the hole they leave in the sequence brings a snapshot.
 *
 * Hello is repeated until a snapshot answers it: a front end opens its subshell after the first
 * messages, and what went to the main shell before is read only when the running cell has ended.
 */
import type { AnyModel, AnyWidget } from "@anywidget/types";
import { parseGraph, parseMessage, parseStatus, type Request } from "./protocol";
import { FlowStore } from "./store";
import { mountView } from "./view";

const HELLO_EVERY_MS = 500;
const HELLO_TIMES = 20;

interface FlowModel {
  graph: unknown;
  snapshot: unknown;
}

function listen(
  model: AnyModel<FlowModel>,
  event: string,
  listener: (content: unknown) => void,
  signal: AbortSignal,
): void {
  model.on(event, listener);
  signal.addEventListener("abort", () => model.off(event as "msg:custom", listener), { once: true });
}

function send(model: AnyModel<FlowModel>, request: Request): void {
  model.send(request);
}

/** Let a parser's complaint cost one message, not the widget. */
function accept(read: () => void): void {
  try {
    read();
  } catch (error) {
    console.warn("aiflow: message dropped.", error);
  }
}

interface Hello {
  say(): void;
  answered(): void;
}

function createHello(model: AnyModel<FlowModel>, signal: AbortSignal): Hello {
  let timer: ReturnType<typeof setInterval> | undefined;
  let left = 0;
  const answered = (): void => {
    clearInterval(timer);
    timer = undefined;
  };
  const say = (): void => {
    left = HELLO_TIMES;
    send(model, { kind: "hello" });
    timer ??= setInterval(() => {
      left -= 1;
      if (left > 0) send(model, { kind: "hello" });
      else answered();
    }, HELLO_EVERY_MS);
  };
  signal.addEventListener("abort", answered, { once: true });
  return { say, answered };
}

const createWidget = (): ReturnType<Extract<AnyWidget<FlowModel>, () => unknown>> => {
  let store: FlowStore;
  let hello: Hello;
  return {
    initialize({ model, signal }) {
      hello = createHello(model, signal);
      store = new FlowStore(hello.say);
      const readGraph = (): void => accept(() => store.setGraph(parseGraph(model.get("graph"))));
      const readSnapshot = (): void =>
        accept(() => store.apply({ kind: "snapshot", status: parseStatus(model.get("snapshot")) }));
      readGraph();
      readSnapshot();
      listen(model, "change:graph", readGraph, signal);
      listen(model, "change:snapshot", readSnapshot, signal);
      const readMessage = (content: unknown): void => {
        const message = parseMessage(content);
        if (message.kind === "snapshot") hello.answered();
        store.apply(message);
      };
      listen(model, "msg:custom", (content) => accept(() => readMessage(content)), signal);
    },
    render({ model, el, signal }) {
      mountView(el, store, { signal, sendCancel: () => send(model, { kind: "cancel" }) });
      hello.say();
    },
  };
};

export default createWidget;
