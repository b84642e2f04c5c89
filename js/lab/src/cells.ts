/**
 * Gives `%%aiflow` code cells their own MIME type, live, and takes it back.
 *
 * The MIME type of the cell's model picks the editor's language. The kernel's language info resets
 * it for every cell, so it is set again whenever it changes.
 */
import type { Cell, ICodeCellModel } from "@jupyterlab/cells";
import type { INotebookTracker, NotebookPanel } from "@jupyterlab/notebook";
import { AIFLOW_MIME, isAiflow } from "./language";

export interface CellHighlighter {
  /** Turn highlighting on or off in every open notebook. */
  enable(on: boolean): void;
}

export function highlightCells(tracker: INotebookTracker): CellHighlighter {
  let enabled = true;
  const followed = new WeakSet<ICodeCellModel>();

  const apply = (panel: NotebookPanel, model: ICodeCellModel): void => {
    if (panel.isDisposed || model.isDisposed) return;
    const ours = enabled && isAiflow(model.sharedModel.getSource());
    const mime = ours ? AIFLOW_MIME : panel.content.codeMimetype;
    if (model.mimeType !== mime && (ours || model.mimeType === AIFLOW_MIME)) model.mimeType = mime;
  };
  const visit = (panel: NotebookPanel): void => {
    for (const cell of panel.content.widgets as readonly Cell[]) {
      if (cell.model.type !== "code") continue;
      const model = cell.model as ICodeCellModel;
      if (!followed.has(model)) {
        followed.add(model);
        model.contentChanged.connect(() => apply(panel, model));
        model.mimeTypeChanged.connect(() => apply(panel, model));
      }
      apply(panel, model);
    }
  };
  const follow = (panel: NotebookPanel): void => {
    panel.content.modelContentChanged.connect(() => visit(panel));
    panel.content.activeCellChanged.connect(() => visit(panel));
    void panel.context.ready.then(() => visit(panel));
  };
  tracker.forEach(follow);
  tracker.widgetAdded.connect((_, panel) => follow(panel));

  return {
    enable(on) {
      enabled = on;
      tracker.forEach(visit);
    },
  };
}
