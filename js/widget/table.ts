/**
 * The same flow as a table: what a screen reader reads best, and what can be copied.
 */
import { element, setText } from "./dom";
import type { GraphNode, NodeStatus } from "./protocol";
import { rateText, shownDepth } from "./words";

const COLUMNS = ["Node", "Operator", "State", "Queue", "Peak", "Processed", "Rate", "Workers"];

export interface Table {
  root: HTMLTableElement;
  update(status: (id: string) => NodeStatus): void;
}

export function createTable(name: string, nodes: readonly GraphNode[]): Table {
  const rows = nodes.map((node) => {
    const cells = COLUMNS.slice(1).map(() => element("td"));
    return { node, cells, root: element("tr", {}, element("th", { scope: "row" }, node.id), ...cells) };
  });
  const root = element(
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
    root,
    update(status) {
      for (const { node, cells } of rows) {
        const now = status(node.id);
        const values = [
          node.operator,
          now.state,
          `${shownDepth(node, now)} of ${node.queue}`,
          String(now.peak),
          String(now.processed),
          rateText(now.rate),
          String(node.workers),
        ];
        values.forEach((value, i) => {
          setText(cells[i] as Element, value);
        });
      }
    },
  };
}
