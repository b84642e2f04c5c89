/**
 * The language of `%%aiflow` cells, for colours only: a stream parser with no JupyterLab in it.
 *
 * `%%aiflow graph NAME` is followed by graph text. Any other first line is followed by prose, a
 * prompt, in which only `{{identifier}}` means something: no quote and no brace is coloured there.
 */
import type { StreamParser, StringStream } from "@codemirror/language";

export const AIFLOW_MIME = "text/x-aiflow";

/** Whether a cell's source belongs to this language. */
export function isAiflow(source: string): boolean {
  return /^%%aiflow(?=\s|$)/.test(source);
}

type Body = "graph" | "prose";

interface State {
  part: "start" | "first line" | Body;
  /** What follows the first line. */
  body: Body;
  /** What the brackets that are open hold: arguments of an operator, or a policy. */
  open: ("(" | "[")[];
}

const STRING = /^(?:"(?:[^"\\]|\\.)*"?|'(?:[^'\\]|\\.)*'?)/;
const NAME = /^[\p{L}_][\p{L}\p{N}_]*/u;

function firstLine(stream: StringStream): string | null {
  if (stream.sol() && stream.match(/^%%\w+/)) return "meta";
  if (stream.match(STRING)) return "string";
  if (stream.match(/^--?[A-Za-z][\w-]*/)) return "attributeName";
  const subcommand = /^%%\w+\s+$/.test(stream.string.slice(0, stream.pos));
  if (!stream.match(/^[^\s="']+/)) stream.next();
  return subcommand ? "keyword" : null;
}

function graphText(stream: StringStream, state: State): string | null {
  if (stream.match(/^#.*/)) return "comment";
  if (stream.match("->")) return "operator";
  if (stream.match(STRING)) return "string";
  if (stream.match(/^\d+(?:\.\d+)?(?:[eE][+-]?\d+)?/)) return "number";
  const inside = state.open.at(-1);
  if (stream.match(/^[([]/)) {
    state.open.push(stream.current() as "(" | "[");
    return "bracket";
  }
  if (stream.match(/^[)\]]/)) {
    state.open.pop();
    return "bracket";
  }
  if (stream.match(NAME)) {
    if (/^(?:true|false|none|True|False|None)$/.test(stream.current())) return "atom";
    if (stream.match(/^\s*=/, false)) return inside ? "attributeName" : "variableName.definition";
    if (stream.match(/^\s*\(/, false)) return "variableName.standard";
    return inside === "[" ? "atom" : "variableName";
  }
  if (stream.match(/^\.(?=[\p{L}_])/u)) {
    stream.match(NAME);
    return "propertyName";
  }
  return stream.next() === "=" ? "operator" : null;
}

function prose(stream: StringStream): string | null {
  if (stream.match(/^\{\{\s*[A-Za-z_]\w*\s*\}\}/)) return "variableName.special";
  stream.next();
  stream.eatWhile(/[^{]/);
  return null;
}

/** The magic stands on the first line of the cell only: a later "%%" is text. */
function enterLine(line: string, state: State): void {
  if (state.part === "start") {
    state.part = "first line";
    state.body = /^%%aiflow\s+graph(\s|$)/.test(line) ? "graph" : "prose";
  } else if (state.part === "first line") {
    state.part = state.body;
  }
}

export const aiflowParser: StreamParser<State> = {
  name: "aiflow",
  startState: () => ({ part: "start", body: "prose", open: [] }),
  copyState: (state) => ({ ...state, open: [...state.open] }),
  token(stream, state) {
    if (stream.sol()) enterLine(stream.string, state);
    if (stream.eatSpace()) return null;
    if (state.part === "first line") return firstLine(stream);
    return state.part === "graph" ? graphText(stream, state) : prose(stream);
  },
  blankLine: (state) => enterLine("", state),
  languageData: { commentTokens: { line: "#" } },
};
