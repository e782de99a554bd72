/** Which tensor a command is about: menus, other views and the cursor each pass their own arguments. */

import type * as vscode from "vscode";
import type { Subject } from "../../shared/tensor/messages";

/** What the Variables view's context menu gives. */
interface VariableArgument {
  variable: {
    name: string;
    value?: string;
    type?: string;
    evaluateName?: string;
    memoryReference?: string;
  };
}

/** A name in a program, which may have points in it, or stand in backquotes. */
const NAME = /`[^`]+`|[A-Za-z_]\w*(?:\.\w+)*/;

/** The tensor that is meant; undefined where nothing says which. */
export function subjectOf(
  argument: unknown,
  editor: vscode.TextEditor | undefined,
  isScript = false,
): Subject | undefined {
  if (typeof argument === "string" && argument.trim()) {
    return { expression: argument.trim() };
  }
  if (isVariableArgument(argument)) {
    const { variable } = argument;
    const shape = shapeIn(variable.type ?? "");
    if (variable.evaluateName) {
      return { expression: variable.evaluateName, ...shape };
    }
    const { memoryReference, name } = variable;
    return memoryReference
      ? { expression: "value", memoryReference, label: name, ...shape }
      : { expression: name };
  }
  if (isSubject(argument)) {
    return argument;
  }
  return editor?.document.languageId === (isScript ? "python" : "opg")
    ? underCursor(editor)
    : undefined;
}

/** Of `f32[64, 256]`, the shape. */
function shapeIn(type: string): { shape?: number[] } {
  const found = /^\w+\[([\d, ]*)\]$/.exec(type.trim())?.[1];
  return found === undefined ? {} : { shape: found.trim() ? found.split(",").map(Number) : [] };
}

function underCursor(editor: vscode.TextEditor): Subject | undefined {
  const { document, selection } = editor;
  const range = selection.isEmpty
    ? document.getWordRangeAtPosition(selection.active, NAME)
    : selection;
  const expression = range && document.getText(range).trim();
  return expression ? { expression } : undefined;
}

function isVariableArgument(argument: unknown): argument is VariableArgument {
  const { variable } = (argument ?? {}) as Partial<VariableArgument>;
  return typeof variable === "object" && typeof variable?.name === "string";
}

function isSubject(argument: unknown): argument is Subject {
  return typeof (argument as Partial<Subject> | undefined)?.expression === "string";
}
