/**
 * The anywidget module: joins the model of a flow to its store, and the store to its views.
 *
 * The default export is a factory, so that the store made in `initialize` belongs to one widget
 * even where a host evaluates this module once for many. Messages that do not parse are dropped
 * with a warning: the hole they leave in the sequence brings a snapshot.
 */
import type { AnyModel, AnyWidget } from "@anywidget/types";
import { parseGraph, parseMessage, parseStatus, type Request } from "./protocol";
import { FlowStore } from "./store";
import { mountView } from "./view";

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

const createWidget = (): ReturnType<Extract<AnyWidget<FlowModel>, () => unknown>> => {
  let store: FlowStore;
  return {
    initialize({ model, signal }) {
      store = new FlowStore(() => send(model, { kind: "hello" }));
      const readGraph = (): void => accept(() => store.setGraph(parseGraph(model.get("graph"))));
      const readSnapshot = (): void =>
        accept(() => store.apply({ kind: "snapshot", status: parseStatus(model.get("snapshot")) }));
      readGraph();
      readSnapshot();
      listen(model, "change:graph", readGraph, signal);
      listen(model, "change:snapshot", readSnapshot, signal);
      listen(model, "msg:custom", (content) => accept(() => store.apply(parseMessage(content))), signal);
    },
    render({ model, el, signal }) {
      mountView(el, store, { signal, sendCancel: () => send(model, { kind: "cancel" }) });
      send(model, { kind: "hello" });
    },
  };
};

export default createWidget;
