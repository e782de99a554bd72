/** What the build makes of `?source`: the bundled script as a text, to make a worker of. */
declare module "*?source" {
  const source: string;
  export default source;
}
