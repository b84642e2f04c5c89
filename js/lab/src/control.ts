/**
 * Carries a widget's cancel request over the control channel, which a kernel reads while a cell
 * blocks it.
 *
 * The widget has no kernel, so it dispatches a DOM event; here the notebook or console that holds
 * the event's target is found, and its kernel is asked. The same request also goes over the comm,
 * so a kernel that does not know the message is no error.
 */
import type { ISessionContext } from "@jupyterlab/apputils";
import type { IConsoleTracker } from "@jupyterlab/console";
import type { INotebookTracker } from "@jupyterlab/notebook";
import { type Kernel, KernelMessage } from "@jupyterlab/services";
import { CANCEL_EVENT, type CancelDetail } from "../../widget/cancel";

const REQUEST = "aiflow_request";

function sessionHolding(
  target: Node,
  notebooks: INotebookTracker,
  consoles: IConsoleTracker | null,
): ISessionContext | undefined {
  return (
    notebooks.find((panel) => panel.node.contains(target))?.sessionContext ??
    consoles?.find((panel) => panel.node.contains(target))?.sessionContext
  );
}

async function requestCancel(kernel: Kernel.IKernelConnection, runId: string): Promise<void> {
  const message = KernelMessage.createMessage({
    msgType: "interrupt_request",
    channel: "control",
    session: kernel.clientId,
    username: kernel.username,
    content: {},
  });
  // A message type of our own, which the protocol's typed union does not list.
  const request = {
    ...message,
    header: { ...message.header, msg_type: REQUEST },
    content: { action: "cancel", run_id: runId },
  } as unknown as KernelMessage.IControlMessage;
  await kernel.sendControlMessage(request, true, true).done;
}

export function carryCancel(notebooks: INotebookTracker, consoles: IConsoleTracker | null): void {
  document.addEventListener(CANCEL_EVENT, (event) => {
    const runId = (event as CustomEvent<Partial<CancelDetail> | null>).detail?.run_id;
    if (typeof runId !== "string" || !(event.target instanceof Node)) return;
    const kernel = sessionHolding(event.target, notebooks, consoles)?.session?.kernel;
    if (!kernel) return;
    requestCancel(kernel, runId).catch((error: unknown) =>
      console.debug("aiflow: cancel by control channel", error),
    );
  });
}
