/** The layout beside the page, which stays alive while a large graph is arranged. */

import { messageOf } from "../../shared/errors";
import { computeLayout, type LayoutRequest } from "./layout";

self.onmessage = ({ data }: MessageEvent<LayoutRequest & { id: number }>) => {
  try {
    self.postMessage({ id: data.id, layout: computeLayout(data) });
  } catch (error) {
    self.postMessage({ id: data.id, error: messageOf(error) });
  }
};
