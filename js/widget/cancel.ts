/**
 * The Cancel button: asks at once, by two ways, and says so when nobody answers.
 *
 * A kernel busy with a blocking cell may not read its comm. So the request also leaves as a DOM
 * event, which the JupyterLab extension carries over the control channel; and when neither an
 * acknowledgement nor an end of the run arrives in time, the note points to the Stop button.
 */
import { element, setText } from "./dom";
import type { FlowStore } from "./store";

export const CANCEL_EVENT = "aiflow:cancel";
const ANSWER_WITHIN_MS = 500;

export interface CancelDetail {
  run_id: string;
}

export interface Cancel {
  button: HTMLButtonElement;
  note: HTMLElement;
  update(): void;
}

export function createCancel(
  store: FlowStore,
  root: HTMLElement,
  send: () => void,
  signal: AbortSignal,
): Cancel {
  const button = element("button", { type: "button", class: "aiflow-button aiflow-cancel" });
  const note = element("span", { class: "aiflow-note", role: "status" });
  let timer: ReturnType<typeof setTimeout> | undefined;

  const update = (): void => {
    const running = store.run === "running";
    button.hidden = !running;
    button.disabled = !running || store.cancel !== "none";
    setText(button, store.cancel === "none" ? "Cancel" : "Cancelling…");
    if (!running || store.cancel !== "requested") {
      clearTimeout(timer);
      setText(note, "");
    }
  };
  button.addEventListener(
    "click",
    () => {
      store.requestCancel();
      update();
      timer = setTimeout(() => setText(note, "kernel busy - use Stop"), ANSWER_WITHIN_MS);
      // The event first: sending throws where the comm is closed, and the event may still arrive.
      const detail: CancelDetail = { run_id: store.runId };
      root.dispatchEvent(new CustomEvent(CANCEL_EVENT, { detail, bubbles: true, composed: true }));
      send();
    },
    { signal },
  );
  signal.addEventListener("abort", () => clearTimeout(timer), { once: true });
  update();
  return { button, note, update };
}
