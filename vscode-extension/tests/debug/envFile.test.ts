import { expect, it } from "vitest";
import { parseEnvFile } from "../../src/debug/envFile";

const TEXT = `# of the lab
A=1
export B = two words  # and a note
C="quoted # text\\nwith a line"
D='as it is ${"${A}"}'
E=${"${A}"}/${"${HOME}"}/${"${NONE}"}
F=\\${"${A}"}
G=
not a variable
H=a=b#c
`;

it("variables, with quotes, notes, and others in them", () => {
  expect(parseEnvFile(TEXT, { HOME: "/people/me" })).toEqual({
    A: "1",
    B: "two words",
    C: "quoted # text\nwith a line",
    D: "as it is ${A}",
    E: "1//people/me/",
    F: "${A}",
    G: "",
    H: "a=b#c",
  });
});
