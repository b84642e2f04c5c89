/**
 * The JupyterLab side of aiflow: highlighting, cancel over the control channel, saved flows.
 *
 * Nothing here is needed for a flow to run or to be seen live; without it the widget still works.
 */
import { LanguageSupport, StreamLanguage } from "@codemirror/language";
import type { JupyterFrontEnd, JupyterFrontEndPlugin } from "@jupyterlab/application";
import { IEditorLanguageRegistry } from "@jupyterlab/codemirror";
import { IConsoleTracker } from "@jupyterlab/console";
import { INotebookTracker } from "@jupyterlab/notebook";
import { IRenderMimeRegistry } from "@jupyterlab/rendermime";
import { ISettingRegistry } from "@jupyterlab/settingregistry";
import { highlightCells } from "./cells";
import { carryCancel } from "./control";
import { AIFLOW_MIME, aiflowParser } from "./language";
import { SNAPSHOT_RANK, snapshotRenderer } from "./snapshot";

const ID = "aiflow-jupyter:plugin";

const plugin: JupyterFrontEndPlugin<void> = {
  id: ID,
  description: "Highlights %%aiflow cells, cancels runs while a cell blocks, shows saved flows.",
  autoStart: true,
  requires: [INotebookTracker, IEditorLanguageRegistry, IRenderMimeRegistry],
  optional: [IConsoleTracker, ISettingRegistry],
  activate: (
    _app: JupyterFrontEnd,
    notebooks: INotebookTracker,
    languages: IEditorLanguageRegistry,
    rendermime: IRenderMimeRegistry,
    consoles: IConsoleTracker | null,
    settings: ISettingRegistry | null,
  ) => {
    languages.addLanguage({
      name: "aiflow",
      displayName: "aiflow",
      mime: AIFLOW_MIME,
      extensions: ["aiflow"],
      support: new LanguageSupport(StreamLanguage.define(aiflowParser)),
    });
    rendermime.addFactory(snapshotRenderer, SNAPSHOT_RANK);
    carryCancel(notebooks, consoles);

    const highlighter = highlightCells(notebooks);
    const follow = (loaded: ISettingRegistry.ISettings): void =>
      highlighter.enable(loaded.get("highlight").composite !== false);
    settings?.load(ID).then(
      (loaded) => {
        loaded.changed.connect(follow);
        follow(loaded);
      },
      (error: unknown) => console.debug("aiflow: settings", error),
    );
  },
};

export default plugin;
