import { mkdtemp, rm, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import path from "node:path";
import { afterAll, beforeAll, expect, it } from "vitest";
import { arraysIn } from "../../src/debug/archive";

const DIGITS = path.join(__dirname, "../../../opstep/data/digits.npz");
let folder: string;

beforeAll(async () => {
  folder = await mkdtemp(path.join(tmpdir(), "opstep-archive-"));
});
afterAll(() => rm(folder, { recursive: true }));

it("names the arrays of an archive that NumPy wrote", async () => {
  expect((await arraysIn(DIGITS)).sort()).toEqual([
    "test_images",
    "test_labels",
    "train_images",
    "train_labels",
  ]);
});

it.each([
  ["an empty file", Buffer.alloc(0)],
  ["a text", Buffer.from("no archive at all, but longer than its end record would be")],
  ["an end record that points nowhere", endRecord(0xfffffff, 0xfffffff)],
])("finds none in %s", async (_, content) => {
  const file = path.join(folder, "x.npz");
  await writeFile(file, content);
  expect(await arraysIn(file)).toEqual([]);
});

function endRecord(length: number, start: number): Buffer {
  const record = Buffer.alloc(22);
  record.writeUInt32LE(0x06054b50, 0);
  record.writeUInt32LE(length, 12);
  record.writeUInt32LE(start, 16);
  return record;
}
