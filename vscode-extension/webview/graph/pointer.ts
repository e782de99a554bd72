/** What the pointer does in the picture: clicks on nodes, on what is drawn in them, and hovers. */

import type { PictureNode } from "./model";
import type { Scene } from "./scene";
import { aboutLink, type Tooltip } from "./tooltip";

/** What the page does for it. */
interface Actions {
  choose(key: string | undefined): void;
  toggle(shown: PictureNode): void;
  expand(shown: PictureNode): void;
  enter(shown: PictureNode): void;
  goToLine(shown: PictureNode): void;
  /** To the line that declares a weight which is written in a node. */
  goTo(weight: PictureNode["weights"][number]): void;
  about(shown: PictureNode): HTMLElement[];
}

/** The first click of two on a call waits so long: its jump would take the panel's focus. */
const SECOND_CLICK_MS = 250;

export function followPointer(scene: Scene, tooltip: Tooltip, actions: Actions): void {
  const { surface } = scene;
  let clicked = 0;

  const enter = (shown: PictureNode) => {
    window.clearTimeout(clicked);
    actions.enter(shown);
  };

  const parts: Record<string, (shown: PictureNode, event: Event) => void> = {
    breakpoint: actions.toggle,
    expand: actions.expand,
    collapse: actions.expand,
    enter,
    weight: (shown, event) => {
      const weight = shown.weights[Number(under(event, "data-weight"))];
      if (weight !== undefined) {
        actions.goTo(weight);
      }
    },
  };

  surface.addEventListener("click", (event) => {
    surface.focus();
    tooltip.hide();
    const shown = scene.shown(under(event, "data-key"));
    const part = parts[under(event, "data-act") ?? ""];
    if (shown === undefined || part === undefined) {
      actions.choose(shown?.key);
      window.clearTimeout(clicked);
      if (shown !== undefined && event.detail === 1) {
        const wait = shown.node.calls.length > 0 ? SECOND_CLICK_MS : 0;
        clicked = window.setTimeout(() => actions.goToLine(shown), wait);
      }
    } else {
      part(shown, event);
    }
  });

  surface.addEventListener("dblclick", (event) => {
    const shown = scene.shown(under(event, "data-key"));
    if (shown !== undefined && under(event, "data-act") === undefined) {
      enter(shown);
    }
  });

  surface.addEventListener("pointermove", (event) => {
    const at = { x: event.clientX, y: event.clientY };
    const shown = scene.shown(under(event, "data-key"));
    const link = event.target instanceof Element ? event.target.getAttribute("data-link") : null;
    if (event.buttons !== 0 || (shown === undefined && link === null)) {
      tooltip.hide();
    } else if (shown !== undefined) {
      tooltip.later(shown.key, at, () => actions.about(shown));
    } else {
      const found = scene.picture.links.find((l) => l.key === link);
      tooltip.later(`link ${link}`, at, () => found && aboutLink(found));
    }
  });
  surface.addEventListener("pointerleave", () => tooltip.hide());
}

/** An attribute of what is under the pointer, or of what that is a part of. */
function under({ target }: Event, attribute: string): string | undefined {
  const at = target instanceof Element ? target.closest(`[${attribute}]`) : null;
  return at?.getAttribute(attribute) ?? undefined;
}
