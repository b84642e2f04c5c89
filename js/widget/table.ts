/**
 * The same flow as a table: what a screen reader reads best, and what can be copied.
 */
import { element, setText } from "./dom";
import type { Details, GraphNode, NodeStatus } from "./protocol";
import type { FlowStore } from "./store";
import { rateText, shares, shortTime, shownDepth } from "./words";

const COLUMNS = [
  "Node",
  "Operator",
  "State",
  "Queue",
  "Peak",
  "Processed",
  "Rate",
  "Workers",
  "Busy / blocked / idle",
  "Wait",
  "p95",
  "First event",
  "Dropped",
  "Retries",
  "Errors",
];

function detailCells(details: Details | undefined): string[] {
  if (!details) return Array(7).fill("N/A");
  const { wait, p95, first, dropped, retries, errors } = details;
  return [
    `${shares(details).join(" / ")} %`,
    ...[wait, p95, first].map(shortTime),
    ...[dropped, retries, errors].map(String),
  ];
}

export interface Table {
  root: HTMLElement;
  update(store: FlowStore): void;
}

export function createTable(name: string, nodes: readonly GraphNode[]): Table {
  const rows = nodes.map((node) => {
    const cells = COLUMNS.slice(1).map(() => element("td"));
    return { node, cells, root: element("tr", {}, element("th", { scope: "row" }, node.id), ...cells) };
  });
  const table = element(
    "table",
    { class: "aiflow-table" },
    element("caption", {}, `Nodes of ${name}`),
    element(
      "thead",
      {},
      element("tr", {}, ...COLUMNS.map((title) => element("th", { scope: "col" }, title))),
    ),
    element("tbody", {}, ...rows.map((row) => row.root)),
  );
  return {
    root: element("div", { class: "aiflow-scroll", tabindex: "0" }, table),
    update(store) {
      for (const { node, cells } of rows) {
        const now: NodeStatus = store.node(node.id);
        const values = [
          node.operator,
          store.bottleneck === node.id ? `${now.state}, bottleneck` : now.state,
          `${shownDepth(node, now)} of ${node.queue}`,
          String(now.peak),
          String(now.processed),
          rateText(now.rate),
          String(node.workers),
          ...detailCells(store.detailsOf(node.id)),
        ];
        values.forEach((value, i) => {
          setText(cells[i] as Element, value);
        });
      }
    },
  };
}
