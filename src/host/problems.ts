/**
 * What is wrong with a store right now, by code. The two loops find the same fault on the same disk, each for itself: it is
 * told once, when the first of them meets it, and taken back when the last of them is well again.
 */
import type { Degradation } from './folder-lock.ts';

export class Problems {
  readonly #byCode = new Map<string, { readonly problem: Degradation; readonly reporters: Set<string> }>();

  /** True when nobody has reported this code before. */
  begin(reporter: string, problem: Degradation): boolean {
    const known = this.#byCode.get(problem.code);
    if (known !== undefined) {
      known.reporters.add(reporter);
      return false;
    }
    this.#byCode.set(problem.code, { problem, reporters: new Set([reporter]) });
    return true;
  }

  /** True when nobody reports this code any more. */
  end(reporter: string, code: string): boolean {
    const known = this.#byCode.get(code);
    if (known === undefined || !known.reporters.delete(reporter) || known.reporters.size > 0) return false;
    return this.#byCode.delete(code);
  }

  /** The reporter was replaced by one that knows of no fault; the codes that nobody reports any more. */
  endAll(reporter: string): string[] {
    return [...this.#byCode.keys()].filter((code) => this.end(reporter, code));
  }

  /** One that still holds, or null. */
  get first(): Degradation | null {
    return this.#byCode.values().next().value?.problem ?? null;
  }
}
