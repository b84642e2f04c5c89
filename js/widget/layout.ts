/**
 * Where the cards and edges of a graph go: `layout(graph)`, and nothing else of dagre leaks out.
 *
 * Layout runs once per graph definition, never on a tick; results are kept by the graph's JSON, so
 * a second view of a flow costs nothing. Cycles, loops and parallel edges are drawn as they are.
 */
import { Graph as DagreGraph, layout as dagre } from "@dagrejs/dagre";
import type { Graph } from "./protocol";

export const CARD = { width: 146, height: 74 };

const LABEL_HEIGHT = 16;
const LABEL_CHARACTERS = 18;
/** Room before a label for the edge to bend in: under the words it runs level. */
const LABEL_LEAD = 22;
const BACK_OFFSET = 18;
const KEPT = 16;

export interface Point {
  x: number;
  y: number;
}

export interface PlacedEdge {
  from: string;
  to: string;
  /** Whether it leads back, closing a cycle. */
  back: boolean;
  /** The port's name, shortened to fit its place. */
  label: string;
  /** The middle of the label's left end. */
  labelAt: Point;
  path: string;
  /** Where the edge ends, and the way it points there, in degrees. */
  tip: Point;
  angle: number;
}

export interface Layout {
  width: number;
  height: number;
  /** Centres of the cards. */
  nodes: Map<string, Point>;
  edges: PlacedEdge[];
}

const cache = new Map<string, Layout>();

export function layout(graph: Graph): Layout {
  const key = JSON.stringify([graph.nodes.map((node) => node.id), graph.edges]);
  const known = cache.get(key);
  if (known) return known;
  const placed = place(graph);
  if (cache.size >= KEPT) cache.delete(cache.keys().next().value as string);
  cache.set(key, placed);
  return placed;
}

function shorten(port: string | null): string {
  const characters = [...(port ?? "")];
  return characters.length > LABEL_CHARACTERS
    ? `${characters.slice(0, LABEL_CHARACTERS - 1).join("")}…`
    : characters.join("");
}

function labelWidth(label: string): number {
  return LABEL_LEAD + 12 + 6 * [...label].length;
}

function place(graph: Graph): Layout {
  const drawn = new DagreGraph({ multigraph: true });
  drawn.setGraph({ rankdir: "LR", nodesep: 14, ranksep: 26, edgesep: 12, marginx: 6, marginy: 6 });
  // Ids are given by position: dagre keeps them in plain objects, where a name may collide.
  const position = new Map(graph.nodes.map((node, i) => [node.id, String(i)]));
  const at = (id: string): string => position.get(id) as string;
  for (const node of graph.nodes) drawn.setNode(at(node.id), { ...CARD });
  graph.edges.forEach((edge, i) => {
    const label = shorten(edge.port);
    const size = label ? { width: labelWidth(label), height: LABEL_HEIGHT } : { width: 0, height: 0 };
    drawn.setEdge(at(edge.from), at(edge.to), { ...size, labelpos: "c" }, String(i));
  });
  dagre(drawn);

  const { width = 0, height = 0 } = drawn.graph() as { width?: number; height?: number };
  const centres = graph.nodes.map((node): Point => {
    const { x, y } = drawn.node(at(node.id)) as Point;
    return { x, y };
  });
  const mirrored = isUpsideDown(centres);
  const upright = ({ x, y }: Point): Point => ({ x, y: mirrored ? height - y : y });
  const nodes = new Map(graph.nodes.map((node, i) => [node.id, upright(centres[i] as Point)]));
  const edges = graph.edges.map((edge, i): PlacedEdge => {
    const found = drawn.edge(at(edge.from), at(edge.to), String(i)) as { points: Point[] };
    const through = found.points.map(upright);
    const [from, to] = [nodes.get(edge.from) as Point, nodes.get(edge.to) as Point];
    const label = shorten(edge.port);
    const middle = Math.floor(through.length / 2);
    const labelAt = through[middle] as Point;
    if (label) labelAt.x -= labelWidth(label) / 2 - LABEL_LEAD;
    const loop = edge.from === edge.to;
    const points = loop ? through : anchor(through, from, to);
    const [before, tip] = points.slice(-2) as [Point, Point];
    const back = to.x <= from.x;
    return {
      from: edge.from,
      to: edge.to,
      back,
      label,
      labelAt,
      path: loop ? polyline(points) : curve(points),
      tip,
      angle: loop ? (Math.atan2(tip.y - before.y, tip.x - before.x) * 180) / Math.PI : back ? 180 : 0,
    };
  });
  const finite = (value: number): number => (Number.isFinite(value) ? Math.ceil(value) : 0);
  return { width: finite(width), height: finite(height), nodes, edges };
}

/**
 * Let an edge leave and enter at the middle of the facing sides, so that many edges read as one
 * port; an edge that leads back keeps beside that, on the side it comes from.
 */
function anchor(through: Point[], from: Point, to: Point): Point[] {
  const back = to.x <= from.x;
  const half = ((back ? -1 : 1) * CARD.width) / 2;
  const inner = through.slice(1, -1);
  const beside = (end: Point, next: Point | undefined): number =>
    back ? Math.sign((next?.y ?? end.y) - end.y) * BACK_OFFSET : 0;
  return [
    { x: from.x + half, y: from.y + beside(from, inner[0]) },
    ...inner,
    { x: to.x - half, y: to.y + beside(to, inner.at(-1)) },
  ];
}

/**
 * dagre is free to put the first of two siblings above or below the second. Of a drawing and its
 * mirror image, take the one that follows the order in which the nodes were declared.
 */
function isUpsideDown(centres: Point[]): boolean {
  let order = 0;
  centres.forEach((a, i) => {
    for (const b of centres.slice(i + 1)) if (Math.abs(a.x - b.x) < 1) order += Math.sign(b.y - a.y);
  });
  return order < 0;
}

const number = (value: number): string => value.toFixed(1);
const point = ({ x, y }: Point): string => `${number(x)},${number(y)}`;

/** Cubic pieces with horizontal tangents: edges leave and arrive level. */
function curve(points: Point[]): string {
  const [start, ...rest] = points as [Point, ...Point[]];
  let at = start;
  let path = `M${point(start)}`;
  for (const next of rest) {
    const middle = (at.x + next.x) / 2;
    path += `C${number(middle)},${number(at.y)} ${number(middle)},${number(next.y)} ${point(next)}`;
    at = next;
  }
  return path;
}

function polyline(points: Point[]): string {
  return `M${points.map(point).join("L")}`;
}
