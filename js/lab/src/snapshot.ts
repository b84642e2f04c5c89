/**
 * Draws a flow saved in a notebook, `application/vnd.aiflow.flow+json`, with no kernel behind it.
 *
 * It is the widget's own view, read-only. The renderer is safe: the parser accepts numbers, known
 * words and strings, and strings become text nodes. Its rank is better than the widget manager's,
 * which takes `application/vnd.jupyter.widget-view+json` at -10 in every notebook, so that an
 * output that holds both shows the finished graph and not a widget whose model is gone.
 */
import type { IRenderMime } from "@jupyterlab/rendermime-interfaces";
import { Widget } from "@lumino/widgets";
import { FLOW_MIME, parseSavedFlow } from "../../widget/protocol";
import { FlowStore } from "../../widget/store";
import { mountView } from "../../widget/view";

export const SNAPSHOT_RANK = -20;

class SavedFlowView extends Widget implements IRenderMime.IRenderer {
  private shown = new AbortController();

  async renderModel(model: IRenderMime.IMimeModel): Promise<void> {
    this.shown.abort();
    this.shown = new AbortController();
    this.node.replaceChildren();
    try {
      const { graph, snapshot } = parseSavedFlow(model.data[FLOW_MIME]);
      const store = new FlowStore();
      store.setGraph(graph);
      store.apply({ kind: "snapshot", status: snapshot });
      mountView(this.node, store, { signal: this.shown.signal });
    } catch (error) {
      this.node.textContent = `This saved flow cannot be shown: ${error instanceof Error ? error.message : error}`;
    }
  }

  override dispose(): void {
    this.shown.abort();
    super.dispose();
  }
}

export const snapshotRenderer: IRenderMime.IRendererFactory = {
  safe: true,
  mimeTypes: [FLOW_MIME],
  createRenderer: () => new SavedFlowView(),
};
