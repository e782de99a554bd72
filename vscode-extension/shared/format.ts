/** Numbers and times as people read them. */

/** `1,234` */
export function grouped(count: number): string {
  return count.toLocaleString("en-US");
}

/** `1 row`, `1,234 rows` */
export function counted(count: number, noun: string, plural = `${noun}s`): string {
  return `${grouped(count)} ${count === 1 ? noun : plural}`;
}

/** A number of so many significant digits, without zeros at the end. */
export function significant(value: number, digits: number): string {
  return String(Number(value.toPrecision(digits)));
}

/** `8.57 µs`, `2 min 5 s` */
export function duration(seconds: number): string {
  if (seconds >= 60) {
    const minutes = Math.floor(seconds / 60);
    return minutes < 60
      ? `${minutes} min ${Math.floor(seconds % 60)} s`
      : `${Math.floor(minutes / 60)} h ${minutes % 60} min`;
  }
  const units = ["s", "ms", "µs"];
  const k = units.findIndex((_, power) => seconds * 1e3 ** power >= 1);
  return k < 0
    ? `${significant(seconds * 1e9, 3)} ns`
    : `${significant(seconds * 1e3 ** k, 3)} ${units[k]}`;
}

/** Decimal points stand under each other: no row has less behind its own than `behind`. */
export function aligned(text: string, behind: number): string {
  return text === "" ? "" : text + "\u00a0".repeat(Math.max(0, behind - widthBehind(text)));
}

/** From the decimal point on: 0 of an integer. */
export function widthBehind(text: string): number {
  const at = /\d(?=[.e])/.exec(text)?.index;
  return at === undefined ? 0 : text.length - at - 1;
}
