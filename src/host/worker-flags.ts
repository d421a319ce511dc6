/**
 * Node flags for our Workers. By default a Worker inherits the process's flags; with `node --input-type=module -e …` it would
 * inherit the input type, which Node refuses for a Worker that is a file. Passing a list of our own in general is no way out:
 * Node then refuses every flag that belongs to the process (--expose-gc, --max-old-space-size, …).
 */
export function workerFlags(): { execArgv?: string[] } {
  return process.execArgv.some((flag) => flag.startsWith('--input-type') || flag.startsWith('--experimental-default-type')) ? { execArgv: [] } : {};
}
