/**
 * Turns compiled product modules into generators, so that a scheduler can stop them before every Atomics operation.
 *
 * Nothing of the lock code is written again: the text of `dist` is taken, the named functions become generator functions,
 * calls of them and of `Atomics.*` inside them become `yield*`. Functions that are not named keep using the real Atomics and
 * run without interruption (constructors, reads of the thread's own state). A name that is not found is an error, so the
 * explorer cannot silently explore something else.
 */
import { readFileSync } from 'node:fs';
import { dist } from '../../helpers/paths.ts';

export interface ModuleSpec {
  /** Path under `src` without ending. */
  readonly path: string;
  /** Functions and methods (with `#` where private) that become generators. */
  readonly steps: readonly string[];
}

/** Product code under exploration, in dependency order. Modules that are not listed are taken from `externals`. */
export const SYNC_MODULES: readonly ModuleSpec[] = [
  { path: 'shared/sync/waits', steps: ['waitForLock', 'waitForCondition', 'waitForWork'] },
  { path: 'shared/sync/lock-word', steps: ['tryTake', 'take', 'release', 'takeFromDead'] },
  { path: 'shared/sync/lock', steps: ['take', 'drop', '#takeOver', 'releaseAll'] },
  { path: 'shared/sync/mutex', steps: ['acquire', 'release'] },
  { path: 'shared/sync/reentrant', steps: ['acquire', 'release'] },
  { path: 'shared/sync/condition', steps: ['ticket', 'wait', '#sleep', 'waitUntil', 'broadcast', 'broadcastAt'] },
  { path: 'shared/doorbell', steps: ['ring', 'seen', 'wait'] },
  { path: 'shared/ring', steps: ['push', 'pop'] },
];

/** Calls that become `yield*` wherever they stand in a step. */
const CALLED = [
  'tryTake',
  'take',
  'release',
  'takeFromDead',
  'waitForLock',
  'waitForCondition',
  'waitForWork',
  'drop',
  '#takeOver',
  'releaseAll',
  'acquire',
  'ticket',
  'wait',
  '#sleep',
  'waitUntil',
  'broadcast',
  'broadcastAt',
  'ring',
  'seen',
  'push',
  'pop',
  'predicate',
];
/** These names mean something else on these objects. */
const NOT_STEPS = /(?:\bheld\.\w+|words\.\w+|Math\.\w+)\($/;

export interface Mutation {
  readonly find: RegExp;
  readonly replace: string;
  /** The module it applies to. */
  readonly path: string;
}

/** End of the balanced pair that opens at `open`. Strings and comments of the compiled sources hold no unbalanced pairs but in templates, which are skipped. */
function closing(text: string, open: number): number {
  const pair = text[open] === '(' ? '()' : '{}';
  let depth = 0;
  for (let i = open; i < text.length; i++) {
    const c = text[i]!;
    if (c === "'" || c === '`') {
      for (i++; text[i] !== c; i++) if (text[i] === '\\') i++;
    } else if (c === '/' && text[i + 1] === '/') i = text.indexOf('\n', i);
    else if (c === '/' && text[i + 1] === '*') i = text.indexOf('*/', i) + 1;
    else if (c === pair[0]) depth++;
    else if (c === pair[1] && --depth === 0) return i;
  }
  throw new Error('unbalanced source');
}

const NAMES = CALLED.map((name) => name.replace('#', '#')).join('|');
const CALL = new RegExp(`(?<![\\w.$#])((?:(?:this|[a-zA-Z_$][\\w$]*)(?:\\.#?\\w+)*\\.)?(?:${NAMES})|Atomics\\.\\w+)\\(`, 'g');

/** Wraps every call of a step inside `body` as `(yield* call(...))`. */
function wrapCalls(body: string): string {
  let out = '';
  let at = 0;
  const pattern = new RegExp(CALL.source, 'g');
  for (;;) {
    pattern.lastIndex = at;
    const match = pattern.exec(body);
    if (match === null) return out + body.slice(at);
    const open = match.index + match[0].length - 1;
    if (NOT_STEPS.test(match[0])) {
      out += body.slice(at, open + 1);
      at = open + 1;
      continue;
    }
    const close = closing(body, open);
    const callee = match[1]!.startsWith('Atomics.') ? match[1]!.replace('Atomics', '__A') : match[1]!;
    out += `${body.slice(at, match.index)}(yield* ${callee}(${wrapCalls(body.slice(open + 1, close))}))`;
    at = close + 1;
  }
}

function toGenerators(code: string, spec: ModuleSpec): string {
  let text = code;
  for (const name of spec.steps) {
    const definition = new RegExp(`^(export function |function | {4}(?:static )?)(${name.replace('#', '\\#')})\\(`, 'm');
    const match = definition.exec(text);
    if (match === null) throw new Error(`${spec.path} has no function ${name}: the explorer's list is out of date`);
    const head = match[1]!.includes('function') ? match[1]!.replace('function ', 'function* ') : `${match[1]}*`;
    const open = text.indexOf('{', closing(text, match.index + match[0].length - 1));
    const close = closing(text, open);
    const signature = text.slice(match.index + match[1]!.length, open);
    text = text.slice(0, match.index) + head + signature + wrapCalls(text.slice(open, close)) + text.slice(close);
  }
  return text;
}

/** The body of a module as a function of its imports. */
function toFunction(code: string, spec: ModuleSpec): string {
  const exported = [...code.matchAll(/^export (?:abstract )?(?:function\*?|const|class) ([\w$]+)/gm)].map((m) => m[1]);
  return code
    .replace(
      /^import \{([^}]*)\} from '([^']+)';$/gm,
      (_, names: string, from: string) => `const {${names.replaceAll(' as ', ': ')}} = __import('${resolve(spec.path, from)}');`,
    )
    .replace(/^export /gm, '')
    .concat(`\nreturn { ${exported.join(', ')} };`);
}

function resolve(from: string, specifier: string): string {
  return new URL(specifier.replace(/\.js$/, ''), `file:///${from}`).pathname.slice(1);
}

export type Exports = Record<string, never>;

/** Loads the listed modules, with `mutations` applied to the compiled text first. `externals` are all other modules, by path. */
export function loadSteps(
  modules: readonly ModuleSpec[],
  externals: Record<string, object>,
  operations: object,
  mutations: readonly Mutation[] = [],
): Record<string, unknown> {
  const loaded = new Map<string, object>(Object.entries(externals));
  const importing = (path: string): object => {
    const found = loaded.get(path);
    if (found === undefined) throw new Error(`module ${path} is neither explored nor an external`);
    return found;
  };
  const all: Record<string, unknown> = {};
  for (const spec of modules) {
    let code = readFileSync(dist(spec.path), 'utf8');
    for (const mutation of mutations.filter((m) => m.path === spec.path)) {
      if (code.search(mutation.find) < 0) throw new Error(`mutation of ${spec.path} does not apply: ${mutation.find}`);
      code = code.replace(mutation.find, mutation.replace);
    }
    const body = toFunction(toGenerators(code, spec), spec);
    const exports = new Function('__import', '__A', `'use strict';\n${body}`)(importing, operations) as Record<string, unknown>;
    loaded.set(spec.path, exports);
    Object.assign(all, exports);
  }
  return all;
}
