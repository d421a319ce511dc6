/**
 * The demo's prompt: prose in the manner of a manual, made from a fixed seed, so that every run and every machine
 * sends the same tokens.
 */

const SUBJECTS = [
  'The scheduler',
  'The file system',
  'Each worker',
  'The cache',
  'The library',
  'A process',
  'The server',
  'The device driver',
  'The compiler',
  'The shell',
];
const VERBS = ['reads', 'writes', 'opens', 'locks', 'copies', 'checks', 'removes', 'restores', 'allocates', 'compares'];
const OBJECTS = [
  'the block',
  'the header of the file',
  'a buffer in memory',
  'the list of options',
  'the index',
  'the output stream',
  'the environment variable',
  'the directory',
  'a descriptor',
  'the log',
];
const WHEN = [
  'before the next call',
  'when the program starts',
  'after the last write',
  'if the option is set',
  'as long as the lock is held',
  'unless an error occurs',
  'at the end of each line',
  'while other threads wait',
];
const TAILS = [
  'The default is the current directory.',
  'This option can be given more than once.',
  'The return value is zero on success.',
  'See the section on configuration for details.',
  'It is an error if the file does not exist.',
  'The name must not be longer than the limit of the system.',
];

/** About `sentences` sentences in numbered sections. */
export function manualText(sentences: number): string {
  const random = mulberry32(20_261_129);
  const pick = (items: readonly string[]): string => items[Math.floor(random() * items.length)]!;
  const sections: string[] = [];
  for (let section = 1; sections.length * 12 < sentences; section++) {
    const body: string[] = [];
    for (let i = 0; i < 12; i++) body.push(i % 4 === 3 ? pick(TAILS) : `${pick(SUBJECTS)} ${pick(VERBS)} ${pick(OBJECTS)} ${pick(WHEN)}.`);
    sections.push(`${section}. Operation\n\n${body.join(' ')}`);
  }
  return `${sections.join('\n\n')}\n\nIn summary, the user should`;
}

/** The prompt of `npm start`: about 3,000 tokens with the demo model's tokenizer. */
export function demoPrompt(): string {
  return manualText(240);
}

function mulberry32(seed: number): () => number {
  let state = seed;
  return () => {
    state = (state + 0x6d2b79f5) | 0;
    let t = Math.imul(state ^ (state >>> 15), state | 1);
    t ^= t + Math.imul(t ^ (t >>> 7), t | 61);
    return ((t ^ (t >>> 14)) >>> 0) / 4_294_967_296;
  };
}
