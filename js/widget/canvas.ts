/**
 * The drawing of one graph: an SVG of edges under the cards, fitted to the width there is.
 *
 * Built once per graph definition. A drawing wider than its place is made smaller down to
 * `SMALLEST`, where text is still readable, and scrolls beyond that. Below it stands what the
 * bottleneck does, and the details of the node that is pointed at or focused: for eyes only, as
 * they are the card's description.
 */
import { createCard } from "./card";
import { element, setText, svg } from "./dom";
import { layout, type PlacedEdge } from "./layout";
import type { Graph } from "./protocol";
import { roveFocus } from "./roving";
import type { FlowStore } from "./store";
import { detailsText } from "./words";

const SMALLEST = 0.8;

export interface Canvas {
  root: HTMLElement;
  update(store: FlowStore): void;
}

const POINT = "Point at a node, or focus it, for its figures.";

function drawEdge({ path, tip, angle, back }: PlacedEdge): SVGElement {
  return svg(
    "g",
    { class: back ? "aiflow-edge aiflow-back" : "aiflow-edge" },
    svg("path", { d: path }),
    svg("polygon", {
      points: "0,0 -7,-3.5 -7,3.5",
      transform: `translate(${tip.x.toFixed(1)},${tip.y.toFixed(1)}) rotate(${angle.toFixed(0)})`,
    }),
  );
}

function drawPort({ label, labelAt }: PlacedEdge): SVGElement {
  return svg("text", { class: "aiflow-port", x: (labelAt.x + 4).toFixed(1), y: labelAt.y.toFixed(1) }, label);
}

export function createCanvas(graph: Graph, signal: AbortSignal): Canvas {
  const placed = layout(graph);
  const { width, height } = placed;
  const stage = element("div", { class: "aiflow-stage" });
  const fit = element("div", { class: "aiflow-fit" }, stage);
  const scroll = element("div", { class: "aiflow-scroll" }, fit);
  const advice = element("div", { class: "aiflow-advice", hidden: "" });
  const details = element("div", { class: "aiflow-details", "aria-hidden": "true" });
  const root = element("div", {}, scroll, advice, details);
  stage.style.width = `${width}px`;
  stage.style.height = `${height}px`;
  stage.append(
    svg(
      "svg",
      { width: String(width), height: String(height), "aria-hidden": "true" },
      ...placed.edges.map(drawEdge),
      ...placed.edges.filter((edge) => edge.label).map(drawPort),
    ),
  );

  const cards = new Map(
    graph.nodes.map((node) => {
      const centre = placed.nodes.get(node.id) ?? { x: 0, y: 0 };
      return [node.id, createCard(node, centre)] as const;
    }),
  );
  for (const card of cards.values()) stage.append(card.root);
  roveFocus(stage, graph, placed, new Map([...cards].map(([id, card]) => [id, card.root])), signal);

  const refit = (): void => {
    const room = scroll.clientWidth || width;
    const scale = Math.max(SMALLEST, Math.min(1, room / width));
    stage.style.transform = scale < 1 ? `scale(${scale.toFixed(4)})` : "";
    fit.style.width = `${Math.floor(width * scale)}px`;
    fit.style.height = `${Math.ceil(height * scale)}px`;
  };
  refit();
  if (typeof ResizeObserver !== "undefined") {
    const observer = new ResizeObserver(refit);
    observer.observe(scroll);
    signal.addEventListener("abort", () => observer.disconnect(), { once: true });
  }

  const shown = { store: undefined as FlowStore | undefined, hovered: "", focused: "" };
  const tell = (): void => {
    const id = shown.hovered || shown.focused;
    const figures = shown.store?.detailsOf(id);
    setText(details, !id ? POINT : `${id}: ${figures ? detailsText(figures) : "no figures yet"}`);
  };
  const follow = (key: "hovered" | "focused", event: Event, inside: boolean): void => {
    const card = inside && event.target instanceof Element ? event.target.closest("[data-node]") : null;
    shown[key] = card?.getAttribute("data-node") ?? "";
    tell();
  };
  for (const [name, key, inside] of [
    ["pointerover", "hovered", true],
    ["pointerleave", "hovered", false],
    ["focusin", "focused", true],
    ["focusout", "focused", false],
  ] as const)
    stage.addEventListener(name, (event) => follow(key, event, inside), { signal });

  return {
    root,
    update(store) {
      shown.store = store;
      for (const [id, card] of cards)
        card.update(store.node(id), store.detailsOf(id), store.bottleneck === id);
      const words = store.detailsOf(store.bottleneck)?.words ?? "";
      setText(advice, words);
      advice.hidden = words === "";
      tell();
    },
  };
}
