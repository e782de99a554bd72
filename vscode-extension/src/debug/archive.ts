/** The names of the arrays in an .npz file, from the directory at its end (it is a ZIP archive). */

import { open, stat } from "node:fs/promises";

const END = 0x06054b50;
const ENTRY = 0x02014b50;
/** The end record with the longest comment. */
const TAIL = 22 + 0xffff;
const LONGEST_DIRECTORY = 4 << 20;

/** Without `.npy`; none where the file is no such archive. */
export async function arraysIn(path: string): Promise<string[]> {
  const { size } = await stat(path);
  const file = await open(path);
  try {
    const tail = Buffer.alloc(Math.min(size, TAIL));
    await file.read(tail, 0, tail.length, size - tail.length);
    const end = lastIndexOf(tail, END);
    if (end < 0) {
      return [];
    }
    const length = tail.readUInt32LE(end + 12);
    const start = tail.readUInt32LE(end + 16);
    if (length > LONGEST_DIRECTORY || start + length > size) {
      return [];
    }
    const directory = Buffer.alloc(length);
    await file.read(directory, 0, length, start);
    return entries(directory)
      .filter((name) => name.endsWith(".npy"))
      .map((name) => name.slice(0, -".npy".length));
  } finally {
    await file.close();
  }
}

function lastIndexOf(buffer: Buffer, signature: number): number {
  for (let at = buffer.length - 22; at >= 0; at--) {
    if (buffer.readUInt32LE(at) === signature) {
      return at;
    }
  }
  return -1;
}

function entries(directory: Buffer): string[] {
  const names: string[] = [];
  for (let at = 0; at + 46 <= directory.length && directory.readUInt32LE(at) === ENTRY; ) {
    const name = directory.readUInt16LE(at + 28);
    names.push(directory.toString("utf8", at + 46, at + 46 + name));
    at += 46 + name + directory.readUInt16LE(at + 30) + directory.readUInt16LE(at + 32);
  }
  return names;
}
