/** The bundler makes a text of a graph that is imported. */
declare module "*.opg" {
  const text: string;
  export default text;
}
