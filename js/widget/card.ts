/**
 * The card of one node: name, operator, state word, rate, and the gauge of its queue. Its details
 * are its description, which a screen reader reads, and the line below the drawing shows.
 *
 * Built once; `update` changes attributes and text only. Every sign is doubled: the state has a
 * word, a shape and a colour; the gauge has a length, a number, a pattern and a colour; the
 * bottleneck has a word, a shape and a doubled edge.
 */
import { element, setAttribute, setStyle, setText } from "./dom";
import { CARD, type Point } from "./layout";
import type { Details, GraphNode, NodeStatus } from "./protocol";
import { band, detailsText, nodeLabel, rateText, shownDepth } from "./words";

export interface Card {
  root: HTMLElement;
  update(status: NodeStatus, details: Details | undefined, bottleneck: boolean): void;
}

/** Ids have to differ over the whole page, where another bundle may hold this module, too. */
const scope = Math.random().toString(36).slice(2);
let described = 0;

function row(...parts: Node[]): HTMLElement {
  return element("div", { class: "aiflow-row" }, ...parts);
}

export function createCard(node: GraphNode, centre: Point): Card {
  const state = element("span", { class: "aiflow-state" });
  const rate = element("span", { class: "aiflow-rate" });
  const depth = element("span", { class: "aiflow-depth", "aria-hidden": "true" });
  const fill = element("span", { class: "aiflow-fill" });
  const peak = element("span", { class: "aiflow-peak", hidden: "" });
  const meter = element(
    "span",
    {
      class: "aiflow-meter",
      role: "meter",
      "aria-label": `queue of ${node.id}`,
      "aria-valuemin": "0",
      "aria-valuemax": String(node.queue),
    },
    fill,
    peak,
  );
  // There is no room for more: it takes the place of the rate.
  const mark = element("span", { class: "aiflow-mark", hidden: "" }, "bottleneck");
  described += 1;
  const description = element("span", { id: `aiflow-${scope}-${described}`, hidden: "" });
  const root = element(
    "div",
    {
      class: "aiflow-node",
      role: "group",
      tabindex: "-1",
      "data-node": node.id,
      "aria-describedby": description.id,
    },
    row(element("span", { class: "aiflow-name", title: node.id }, node.id), mark, rate),
    row(element("span", { class: "aiflow-operator", title: node.operator }, node.operator), state),
    row(meter, depth),
    description,
  );
  root.style.left = `${centre.x - CARD.width / 2}px`;
  root.style.top = `${centre.y - CARD.height / 2}px`;
  root.style.width = `${CARD.width}px`;
  root.style.height = `${CARD.height}px`;

  const share = (value: number): number => (100 * Math.min(value, node.queue)) / node.queue;
  return {
    root,
    update(status, details, bottleneck) {
      const shown = shownDepth(node, status);
      setAttribute(root, "data-state", status.state);
      setAttribute(root, "data-peak", String(status.peak));
      setAttribute(root, "aria-label", nodeLabel(node, status, bottleneck));
      setText(description, details ? detailsText(details) : "");
      setAttribute(root, "data-bottleneck", String(bottleneck));
      rate.hidden = bottleneck;
      mark.hidden = !bottleneck;
      setText(state, status.state);
      setText(rate, rateText(status.rate));
      setText(depth, `${shown}/${node.queue}`);
      setAttribute(meter, "aria-valuenow", String(shown));
      setAttribute(meter, "aria-valuetext", `${shown} of ${node.queue}`);
      setAttribute(meter, "data-peak", String(status.peak));
      setAttribute(meter, "data-band", band(shown, node.queue));
      // Clipping and moving cost no layout, and a clipped pattern is not squeezed.
      setStyle(fill, "clip-path", `inset(0 ${100 - share(shown)}% 0 0)`);
      setStyle(peak, "left", `${share(status.peak)}%`);
      peak.hidden = status.peak === 0;
    },
  };
}
