/** Which graph a command is about that was given none. */

export interface Sight {
  /** The file of the editor, or of the view of ours, that has the focus. */
  focused?: string;
  /** The file of the frame that is debugged, or the program of the session. */
  debugged?: string;
  /** Files that are open: those in sight first, the one that was used last before the others. */
  open: string[];
}

/** The graph's file; undefined where none is in sight. */
export function graphInSight({ focused, debugged, open }: Sight): string | undefined {
  return [focused, debugged, ...open].find((file) => file?.endsWith(".opg"));
}
