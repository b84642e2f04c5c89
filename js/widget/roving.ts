/**
 * Keyboard through the graph: one tab stop, arrows along the edges, Home and End.
 *
 * Right follows an edge out, Left an edge in; where there is none, and for Up and Down, the
 * nearest card in that direction is taken. (ARIA Authoring Practices, "roving tabindex".)
 */
import type { Layout, Point } from "./layout";
import type { Graph } from "./protocol";

type Way = "left" | "right" | "up" | "down";

const KEYS: Record<string, Way> = {
  ArrowLeft: "left",
  ArrowRight: "right",
  ArrowUp: "up",
  ArrowDown: "down",
};

/** Which node a key leads to from `id`; `id` itself where there is no other. */
export function neighbour(graph: Graph, placed: Layout, id: string, way: Way): string {
  const here = placed.nodes.get(id) as Point;
  const along: string[] = [];
  for (const edge of graph.edges) {
    if (way === "right" && edge.from === id && edge.to !== id) along.push(edge.to);
    if (way === "left" && edge.to === id && edge.from !== id) along.push(edge.from);
  }
  const ahead = ({ x, y }: Point): number =>
    ({ left: here.x - x, right: x - here.x, up: here.y - y, down: y - here.y })[way];
  const aside = ({ x, y }: Point): number =>
    way === "left" || way === "right" ? Math.abs(y - here.y) : Math.abs(x - here.x);
  const far = (to: string): number => {
    const there = placed.nodes.get(to) as Point;
    return Math.abs(ahead(there)) + 2 * aside(there);
  };
  const others =
    along.length > 0
      ? along
      : [...placed.nodes].filter(([, there]) => ahead(there) > 1).map(([other]) => other);
  return (
    others.reduce<string | null>((best, to) => (best === null || far(to) < far(best) ? to : best), null) ?? id
  );
}

export function roveFocus(
  container: HTMLElement,
  graph: Graph,
  placed: Layout,
  cards: ReadonlyMap<string, HTMLElement>,
  signal: AbortSignal,
): void {
  let stop = graph.nodes[0]?.id;
  const moveStop = (id: string): void => {
    if (stop !== undefined) cards.get(stop)?.setAttribute("tabindex", "-1");
    stop = id;
    cards.get(id)?.setAttribute("tabindex", "0");
  };
  if (stop !== undefined) moveStop(stop);

  const idOf = (event: Event): string | undefined => {
    const card = event.target instanceof Element ? event.target.closest("[data-node]") : null;
    return card?.getAttribute("data-node") ?? undefined;
  };
  container.addEventListener(
    "focusin",
    (event) => {
      const id = idOf(event);
      if (id !== undefined) moveStop(id);
    },
    { signal },
  );
  container.addEventListener(
    "keydown",
    (event) => {
      const id = idOf(event);
      if (id === undefined || event.altKey || event.ctrlKey || event.metaKey || event.shiftKey) return;
      const way = KEYS[event.key];
      let to: string | undefined;
      if (way) to = neighbour(graph, placed, id, way);
      else if (event.key === "Home") to = graph.nodes[0]?.id;
      else if (event.key === "End") to = graph.nodes.at(-1)?.id;
      if (to === undefined) return;
      // The notebook would otherwise take the arrows to move between cells.
      event.preventDefault();
      event.stopPropagation();
      cards.get(to)?.focus();
    },
    { signal },
  );
}
