import { StringStream } from "@codemirror/language";
import { describe, expect, test } from "vitest";
import { aiflowParser, isAiflow } from "./language";

/** Every coloured piece of a source, as "token text". */
function tokens(source: string): string[] {
  const state = aiflowParser.startState?.(2) as Parameters<typeof aiflowParser.token>[1];
  const found: string[] = [];
  for (const line of source.split("\n")) {
    if (line === "") aiflowParser.blankLine?.(state, 2);
    const stream = new StringStream(line, 2, 2);
    while (!stream.eol()) {
      stream.start = stream.pos;
      const token = aiflowParser.token(stream, state);
      expect(stream.pos).toBeGreaterThan(stream.start);
      if (token) found.push(`${token} ${stream.current()}`);
    }
  }
  return found;
}

const body = (line: string) => tokens(`%%aiflow graph g\n${line}`).slice(2);

test("a cell is ours when its first line is the magic", () => {
  expect(["%%aiflow", "%%aiflow graph x", "%%aiflow\nhi"].map(isAiflow)).toEqual([true, true, true]);
  expect(["%%aiflows", " %%aiflow", "x\n%%aiflow", "%aiflow list", ""].map(isAiflow)).not.toContain(true);
});

describe("the first line", () => {
  test("is the magic, a subcommand, options and values", () => {
    expect(tokens('%%aiflow graph support --tier local -o "a b"')).toEqual([
      "meta %%aiflow",
      "keyword graph",
      "attributeName --tier",
      "attributeName -o",
      'string "a b"',
    ]);
  });

  test("alone is enough", () => {
    expect(tokens("%%aiflow")).toEqual(["meta %%aiflow"]);
  });
});

describe("graph text", () => {
  test("has definitions, operators, arguments and policies", () => {
    expect(body('safe = filter(no_secrets, by="x") [queue=8, overflow=drop_oldest]')).toEqual([
      "variableName.definition safe",
      "operator =",
      "variableName.standard filter",
      "bracket (",
      "variableName no_secrets",
      "attributeName by",
      "operator =",
      'string "x"',
      "bracket )",
      "bracket [",
      "attributeName queue",
      "operator =",
      "number 8",
      "attributeName overflow",
      "operator =",
      "atom drop_oldest",
      "bracket ]",
    ]);
  });

  test("has edges and ports", () => {
    expect(body("lane.answer -> parts->safe")).toEqual([
      "variableName lane",
      "propertyName .answer",
      "operator ->",
      "variableName parts",
      "operator ->",
      "variableName safe",
    ]);
  });

  test("has comments and strings that hold each other", () => {
    expect(body(`a = f("# no \\" comment", 'it') # it's "one"`)).toEqual([
      "variableName.definition a",
      "operator =",
      "variableName.standard f",
      "bracket (",
      'string "# no \\" comment"',
      "string 'it'",
      "bracket )",
      `comment # it's "one"`,
    ]);
  });

  test("has numbers and truth", () => {
    expect(body("a = f(t=0.2, n=1e3, inline=true)").filter((one) => /number|atom/.test(one))).toEqual([
      "number 0.2",
      "number 1e3",
      "atom true",
    ]);
  });

  test("keeps its place over blank lines and line ends inside brackets", () => {
    expect(tokens("%%aiflow graph g\n\na = f(\n  tier=1)").slice(2)).toContain("attributeName tier");
  });

  test("does not let an open string run into the next line", () => {
    expect(body('a = f("open\nb -> c').slice(-3)).toEqual([
      "variableName b",
      "operator ->",
      "variableName c",
    ]);
  });
});

describe("prose", () => {
  test("has nothing but {{identifier}}", () => {
    const prompt = `Don't say "why" # or\n\n{{topic}} -> {not this} {{ a b }} {{x1}} = f(2) {`;
    expect(tokens(`%%aiflow -o answer\n${prompt}`)).toEqual([
      "meta %%aiflow",
      "attributeName -o",
      "variableName.special {{topic}}",
      "variableName.special {{x1}}",
    ]);
  });

  test("may hold a line that looks like the magic", () => {
    expect(tokens("%%aiflow\n%%aiflow graph g\na = f(1)")).toEqual(["meta %%aiflow"]);
  });

  test("follows a graph only by name, not by prefix", () => {
    expect(tokens("%%aiflow graphic\na -> b")).toEqual(["meta %%aiflow", "keyword graphic"]);
  });
});
