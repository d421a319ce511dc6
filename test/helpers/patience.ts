/**
 * How long a test waits for something that comes in milliseconds when the build is right. Only a wrong build waits so long: the
 * mutants' runner, whose builds are wrong on purpose, lowers it.
 */
export function patience(usualMs: number): number {
  const least = Number(process.env.TIDEMARK_PATIENCE_MS ?? Number.POSITIVE_INFINITY);
  return Math.min(usualMs, least);
}
