import type { INotebookTracker } from "@jupyterlab/notebook";
import { expect, test } from "vitest";
import { highlightCells } from "./cells";
import { AIFLOW_MIME } from "./language";

const PYTHON = "text/x-ipython";

class FakeSignal {
  private readonly slots: ((...values: unknown[]) => void)[] = [];
  connect = (slot: (...values: unknown[]) => void): void => void this.slots.push(slot);
  emit = (...values: unknown[]): void => {
    for (const slot of this.slots) slot(...values);
  };
}

class FakeCell {
  type = "code";
  isDisposed = false;
  contentChanged = new FakeSignal();
  mimeTypeChanged = new FakeSignal();
  sharedModel = { getSource: () => this.source };
  private mime = PYTHON;

  constructor(private source: string) {}

  get mimeType(): string {
    return this.mime;
  }
  set mimeType(value: string) {
    if (value === this.mime) return;
    this.mime = value;
    this.mimeTypeChanged.emit();
  }
  write(source: string): void {
    this.source = source;
    this.contentChanged.emit();
  }
}

async function opened(...cells: FakeCell[]) {
  const content = {
    codeMimetype: PYTHON,
    widgets: cells.map((model) => ({ model })),
    modelContentChanged: new FakeSignal(),
    activeCellChanged: new FakeSignal(),
  };
  const panel = { content, isDisposed: false, context: { ready: Promise.resolve() } };
  const tracker = { forEach: (visit: (one: unknown) => void) => visit(panel), widgetAdded: new FakeSignal() };
  const highlighter = highlightCells(tracker as unknown as INotebookTracker);
  await panel.context.ready;
  return { highlighter, content };
}

test("a cell is switched while it is typed, and back", async () => {
  const cell = new FakeCell("x = 1");
  await opened(cell);
  expect(cell.mimeType).toBe(PYTHON);
  cell.write("%%aiflow graph g");
  expect(cell.mimeType).toBe(AIFLOW_MIME);
  cell.write("x = 1");
  expect(cell.mimeType).toBe(PYTHON);
});

test("the language info of a kernel does not undo it", async () => {
  const cell = new FakeCell("%%aiflow");
  await opened(cell);
  cell.mimeType = "text/x-python";
  expect(cell.mimeType).toBe(AIFLOW_MIME);
});

test("a cell added later is followed", async () => {
  const { content } = await opened();
  const cell = new FakeCell("%%aiflow");
  content.widgets.push({ model: cell });
  content.modelContentChanged.emit();
  expect(cell.mimeType).toBe(AIFLOW_MIME);
});

test("other magics and Markdown are left alone", async () => {
  const markdown = new FakeCell("%%aiflow");
  markdown.type = "markdown";
  const sql = new FakeCell("%%sql");
  sql.mimeType = "text/x-sql";
  await opened(markdown, sql);
  expect([markdown.mimeType, sql.mimeType]).toEqual([PYTHON, "text/x-sql"]);
});

test("the setting turns it off and on", async () => {
  const cell = new FakeCell("%%aiflow");
  const { highlighter } = await opened(cell);
  highlighter.enable(false);
  expect(cell.mimeType).toBe(PYTHON);
  highlighter.enable(true);
  expect(cell.mimeType).toBe(AIFLOW_MIME);
});
