/** Where the small picture stands. */

import type { Box } from "./layout";

const EDGE = 10; // pixels from the edges of the window

/** Left to the buttons: the corner at the bottom on the left. */
const CORNERS = ["bottom right", "top right", "top left"] as const;
type Corner = (typeof CORNERS)[number];

interface Size {
  width: number;
  height: number;
}

/** The corner of a window in which something of this size covers least of what is there. */
export function freeCorner(boxes: readonly Box[], window: Size, size: Size): Corner {
  const covered = (corner: Corner) => {
    const left = corner.endsWith("left") ? EDGE : window.width - EDGE - size.width;
    const top = corner.startsWith("top") ? EDGE : window.height - EDGE - size.height;
    return boxes.reduce((sum, { x, y, width, height }) => {
      const w = Math.min(left + size.width, x + width / 2) - Math.max(left, x - width / 2);
      const h = Math.min(top + size.height, y + height / 2) - Math.max(top, y - height / 2);
      return sum + Math.max(0, w) * Math.max(0, h);
    }, 0);
  };
  const areas = CORNERS.map(covered);
  return CORNERS[areas.indexOf(Math.min(...areas))] ?? "bottom right";
}
