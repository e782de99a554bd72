/** What the tests launch. */

/** `entropy.opg` with inputs that are always the same: four rows of five scores. */
export const ENTROPY = {
  program: "${workspaceFolder}/entropy.opg",
  graph: "main",
  inputs: "random",
  symbols: { N: 4, K: 5 },
  seed: 0,
};

/** `small.opg`, whose inputs stand there. */
export const SMALL = {
  program: "${workspaceFolder}/small.opg",
  inputs: { x: [1, -2, 3] },
};
