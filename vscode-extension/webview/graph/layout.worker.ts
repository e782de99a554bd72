/** The layout beside the page, which stays alive while a large graph is arranged. */

import { type Asked, arrange } from "./layout";

self.onmessage = ({ data }: MessageEvent<Asked & { id: number }>) => {
  try {
    self.postMessage({ id: data.id, arranged: arrange(data) });
  } catch (error) {
    self.postMessage({ id: data.id, error: error instanceof Error ? error.message : `${error}` });
  }
};
