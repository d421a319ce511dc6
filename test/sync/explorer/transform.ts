/**
 * Turns compiled product modules into generators, so that a scheduler can stop them before every operation that other threads
 * can see.
 *
 * Nothing of the product is written again: the text of `dist` is parsed, and every function that may come to an Atomics
 * operation, a file operation or a call of such a function becomes a generator function, callbacks and getters included; calls
 * inside it become `yield*` of whatever generator they give. Which functions these are is found from the code, by name, until
 * nothing more is found; a name too many costs time only, since a call is delegated to when it did give a generator. All other
 * functions stay as they are and run without interruption, constructors too.
 */
import { readFileSync } from 'node:fs';
import { parseAst } from 'vite';
import { dist } from '../../helpers/paths.ts';

export interface Mutation {
  readonly find: RegExp;
  readonly replace: string;
  /** The module it applies to. */
  readonly path: string;
}

// biome-ignore lint/suspicious/noExplicitAny: a syntax tree's nodes are looked at by their type
type Node = any;

const FUNCTIONS = ['FunctionDeclaration', 'FunctionExpression', 'ArrowFunctionExpression'];
/** Methods of arrays that call back; with a callback that may be stopped they are done by a loop here. */
const LOOPS = ['some', 'every', 'filter', 'map', 'find', 'findIndex', 'forEach'];

const isFunction = (node: Node) => FUNCTIONS.includes(node.type);

function childrenOf(node: Node): Node[] {
  const children: Node[] = [];
  for (const [key, value] of Object.entries(node)) {
    if (key === 'parent') continue;
    for (const child of Array.isArray(value) ? value : [value]) if (child !== null && typeof child?.type === 'string') children.push(child);
  }
  return children.sort((a, b) => a.start - b.start);
}

const nameOf = (key: Node): string | null =>
  key?.type === 'Identifier' ? key.name : key?.type === 'PrivateIdentifier' ? `#${key.name}` : key?.type === 'Literal' ? String(key.value) : null;

/** What a function can be called by: its own name, or that of what it is the value of. */
function calledBy(fn: Node): string | null {
  const { parent } = fn;
  if (fn.id) return fn.id.name;
  if (parent.type === 'VariableDeclarator') return nameOf(parent.id);
  if (['MethodDefinition', 'Property', 'PropertyDefinition'].includes(parent.type) && parent.value === fn) return nameOf(parent.key);
  return null;
}

const accessor = (fn: Node): string => (fn.parent.type === 'MethodDefinition' ? fn.parent.kind : 'method');

/** The last name of what is called. */
function calleeName(call: Node): string | null {
  const { callee } = call;
  return callee.type === 'MemberExpression' ? (callee.computed ? null : nameOf(callee.property)) : nameOf(callee);
}

const isAtomics = (call: Node) => call.callee.type === 'MemberExpression' && call.callee.object.name === 'Atomics';

/** `X.some(callback)`: the callback. */
function loopCallback(call: Node): Node | null {
  const [callback] = call.arguments;
  return call.callee.type === 'MemberExpression' && LOOPS.includes(calleeName(call)!) && callback !== undefined && isFunction(callback) ? callback : null;
}

/** `.name` read as a value, where a getter may stand behind it. */
function isRead(node: Node): boolean {
  if (node.type !== 'MemberExpression' || node.computed) return false;
  const { parent } = node;
  if (parent.type === 'CallExpression' && parent.callee === node) return false;
  if (parent.type === 'AssignmentExpression' && parent.left === node) return false;
  if (parent.type === 'UpdateExpression') return false;
  // Tables of offsets and states are constants.
  return !(node.object.type === 'Identifier' && /^[A-Z_]+$/.test(node.object.name));
}

interface Source {
  readonly path: string;
  readonly text: string;
  readonly program: Node;
  readonly functions: Node[];
}

function parse(path: string, text: string): Source {
  const program: Node = parseAst(text);
  const functions: Node[] = [];
  const walk = (node: Node) => {
    if (isFunction(node)) functions.push(node);
    for (const child of childrenOf(node)) {
      child.parent = node;
      walk(child);
    }
  };
  walk(program);
  return { path, text, program, functions };
}

/** Visits what runs as part of `fn` itself. */
function ownNodes(fn: Node, visit: (node: Node) => void): void {
  const walk = (node: Node) => {
    if (isFunction(node)) return;
    visit(node);
    childrenOf(node).forEach(walk);
  };
  childrenOf(fn).forEach(walk);
}

function parameterNames(fn: Node): Set<string> {
  const names = new Set<string>();
  for (let at = fn; at !== undefined; at = at.parent) if (isFunction(at)) for (const p of at.params) names.add(nameOf(p.left ?? p) ?? '');
  return names;
}

/** Marks (`step`) the functions that may have to be stopped. `outer`: names of stand-ins that are such functions. */
function markSteps(sources: readonly Source[], outer: readonly string[], whole: readonly string[]): { getters: Set<string> } {
  const calls = new Set(outer);
  const getters = new Set<string>();
  const isWhole = (fn: Node) => fn.generator || ['constructor', 'set'].includes(accessor(fn)) || whole.includes(calledBy(fn) ?? '');
  const functions = sources.flatMap((s) => s.functions).filter((fn) => !isWhole(fn));
  const stops = (fn: Node): boolean => {
    let found = false;
    const parameters = parameterNames(fn);
    ownNodes(fn, (node) => {
      if (node.type === 'CallExpression') {
        const name = calleeName(node);
        found ||= isAtomics(node) || calls.has(name!) || (node.callee.type === 'Identifier' && parameters.has(name!)) || loopCallback(node)?.step === true;
      } else if (isRead(node)) found ||= getters.has(nameOf(node.property)!);
    });
    return found;
  };
  for (let more = true; more; ) {
    more = false;
    for (const fn of functions) {
      if (fn.step === true || !stops(fn)) continue;
      fn.step = true;
      more = true;
      const name = calledBy(fn);
      if (name !== null) (accessor(fn) === 'get' ? getters : calls).add(name);
    }
  }
  for (const fn of functions) if (fn.step) fn.calls = calls;
  return { getters };
}

/** The text of a module as the body of a function of its imports. */
function toBody({ path, text, program }: Source, getters: ReadonlySet<string>): string {
  const exported: string[] = [];
  const given = (code: string) => `((__t = ${code}) instanceof __G ? yield* __t : __t)`;

  const splice = (node: Node, inner: Node | null): string => {
    let out = '';
    let at = node.start;
    for (const child of childrenOf(node)) {
      if (child.start < at) continue; // `{ a }` is key and value at once
      out += text.slice(at, child.start) + emit(child, inner);
      at = child.end;
    }
    return out + text.slice(at, node.end);
  };

  /** `fn`: the step that `node` belongs to, or null. */
  const emit = (node: Node, fn: Node | null): string => {
    if (isFunction(node)) return emitFunction(node);
    switch (node.type) {
      case 'ImportDeclaration':
        return emitImport(node);
      case 'ExportNamedDeclaration': {
        for (const s of node.specifiers) exported.push(s.exported.name === s.local.name ? s.local.name : `${s.exported.name}: ${s.local.name}`);
        const { declaration } = node;
        if (declaration === null) return '';
        exported.push(...(declaration.declarations ?? [declaration]).map((d: Node) => d.id.name));
        return emit(declaration, fn);
      }
      case 'MethodDefinition':
        if (node.value.step) return emitMethod(node);
        break;
      case 'CallExpression':
        if (fn !== null) return emitCall(node, fn);
        break;
      case 'ChainExpression':
        if (fn !== null) return given(splice(node, null));
        break;
      case 'VariableDeclarator':
        if (fn !== null && node.id.type === 'ObjectPattern' && node.init !== null) return emitDestructuring(node, fn);
        break;
      case 'MemberExpression':
        if (fn !== null && isRead(node) && getters.has(nameOf(node.property)!)) return given(splice(node, fn));
        break;
    }
    return splice(node, fn);
  };

  const emitImport = (node: Node): string => {
    const from = resolve(path, node.source.value);
    const names = node.specifiers.map((s: Node) => (s.type === 'ImportSpecifier' ? `${s.imported.name}: ${s.local.name}` : ''));
    if (names.includes('')) throw new Error(`${path}: only named imports can be explored`);
    return `const { ${names.join(', ')} } = __import('${from}');`;
  };

  const parameters = (fn: Node) => fn.params.map((p: Node) => emit(p, null)).join(', ');
  /** A step's body, braces included. Every step has its own word for what a call gave. */
  const body = (fn: Node): string =>
    fn.body.type === 'BlockStatement' ? `{ let __t; ${splice(fn.body, fn).slice(1)}` : `{ let __t; return (${emit(fn.body, fn)}); }`;

  const emitFunction = (fn: Node): string => {
    if (!fn.step) return splice(fn, null);
    if (fn.type === 'ArrowFunctionExpression') return `(function* (${parameters(fn)}) ${body(fn)}).bind(this)`;
    return `function* ${fn.id?.name ?? ''}(${parameters(fn)}) ${body(fn)}`;
  };

  const emitMethod = (node: Node): string => {
    const name = text.slice(node.key.start, node.key.end);
    const head = node.static ? 'static ' : '';
    if (node.kind === 'get') return `${head}get ${name}() { return (function* () ${body(node.value)}).call(this); }`;
    return `${head}*${name}(${parameters(node.value)}) ${body(node.value)}`;
  };

  const emitCall = (node: Node, fn: Node): string => {
    if (isAtomics(node)) return `(yield* ${splice(node, fn).replace('Atomics', '__A')})`;
    const callback = loopCallback(node);
    if (callback?.step) {
      const array = emit(node.callee.object, fn);
      return `(yield* __loop(${array}, '${calleeName(node)}', ${emitFunction(callback)}))`;
    }
    const name = calleeName(node);
    const may = fn.calls.has(name) || (node.callee.type === 'Identifier' && parameterNames(fn).has(name!));
    return may ? given(splice(node, fn)) : splice(node, fn);
  };

  /** Getters taken by destructuring are read under another name first. */
  const emitDestructuring = (node: Node, fn: Node): string => {
    const taken = node.id.properties.filter((p: Node) => p.type === 'Property' && p.value.type === 'Identifier' && getters.has(nameOf(p.key)!));
    const pattern = node.id.properties.map((p: Node) => (taken.includes(p) ? `${nameOf(p.key)}: __${p.value.name}` : text.slice(p.start, p.end))).join(', ');
    const read = taken.map((p: Node) => `, ${p.value.name} = ${given(`__${p.value.name}`)}`).join('');
    return `{ ${pattern} } = ${emit(node.init, fn)}${read}`;
  };

  const code = program.body.map((statement: Node) => emit(statement, null)).join('\n');
  return `${code}\nreturn { ${exported.join(', ')} };`;
}

function* loop(
  array: Iterable<unknown>,
  method: string,
  callback: (value: unknown, index: number) => Iterable<undefined>,
): Generator<undefined, unknown, undefined> {
  const results: unknown[] = [];
  const values = [...array];
  for (const [index, value] of values.entries()) {
    const result: unknown = yield* callback(value, index) as Generator<undefined, unknown, undefined>;
    if (method === 'some' && result) return true;
    if (method === 'every' && !result) return false;
    if (method === 'find' && result) return value;
    if (method === 'findIndex' && result) return index;
    results.push(result);
  }
  if (method === 'map') return results;
  if (method === 'filter') return values.filter((_, index) => results[index]);
  return method === 'every' ? true : method === 'some' ? false : method === 'findIndex' ? -1 : undefined;
}

/** What generator objects are instances of. */
const GENERATOR = Object.assign(() => undefined, { prototype: Object.getPrototypeOf(loop.prototype) as object });

function resolve(from: string, specifier: string): string {
  return specifier.startsWith('.') ? new URL(specifier.replace(/\.js$/, ''), `file:///${from}`).pathname.slice(1) : specifier;
}

export interface StandIns {
  /** Modules that are not explored, by path under `src` without ending (or by name, as 'node:path'). */
  readonly modules: Readonly<Record<string, object>>;
  /** Names under which stand-ins give generators (file operations). */
  readonly steps?: readonly string[];
  /** Functions of explored modules that need no stop, as nobody else can change what they see. */
  readonly whole?: readonly string[];
  /** May replace what an explored module exports, for the modules after it. */
  readonly loaded?: (path: string, exports: Record<string, unknown>) => void;
}

/** Loads the modules (paths, in dependency order) with `mutations` applied to the compiled text first. */
export function loadSteps(paths: readonly string[], standIns: StandIns, operations: object, mutations: readonly Mutation[] = []): Record<string, unknown> {
  const sources = paths.map((path) => {
    let text = readFileSync(dist(path), 'utf8');
    for (const mutation of mutations.filter((m) => m.path === path)) {
      if (text.search(mutation.find) < 0) throw new Error(`mutation of ${path} does not apply: ${mutation.find}`);
      text = text.replace(mutation.find, mutation.replace);
    }
    return parse(path, text);
  });
  const unknown = mutations.find((m) => !paths.includes(m.path));
  if (unknown !== undefined) throw new Error(`mutation of ${unknown.path} does not apply: the module is not explored`);
  const { getters } = markSteps(sources, standIns.steps ?? [], standIns.whole ?? []);
  const loaded = new Map<string, object>(Object.entries(standIns.modules));
  const importing = (path: string): object => {
    const found = loaded.get(path);
    if (found === undefined) throw new Error(`module ${path} is neither explored nor a stand-in`);
    return found;
  };
  const all: Record<string, unknown> = {};
  for (const source of sources) {
    const make = new Function('__import', '__A', '__G', '__loop', `'use strict';\n${toBody(source, getters)}`);
    const exports = make(importing, operations, GENERATOR, loop) as Record<string, unknown>;
    standIns.loaded?.(source.path, exports);
    loaded.set(source.path, exports);
    Object.assign(all, exports);
  }
  return all;
}
