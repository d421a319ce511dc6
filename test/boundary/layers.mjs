/** Layers as plain data (cloneable) and as the stores take them. A tensor is { dtype, shape, bytes }. */
export function tensor(dtype, shape, bytes) {
  return { dtype, shape, bytes };
}

const isTensor = (element) => element !== null && typeof element === 'object' && !Array.isArray(element);

function toElement(element) {
  if (Array.isArray(element)) return element.map(toElement);
  if (!isTensor(element)) return element;
  const { dtype, shape, bytes } = element;
  return { dtype, shape, byteLength: bytes.length, copyTo: (target, from) => target.set(bytes.subarray(from, from + target.length)) };
}

function fromElement(element) {
  if (Array.isArray(element)) return element.map(fromElement);
  if (!isTensor(element)) return element;
  const bytes = new Uint8Array(element.byteLength);
  element.copyTo(bytes, 0);
  return { dtype: element.dtype, shape: [...element.shape], bytes };
}

/** Plain layers → LayerState[]. */
export function toLayers(plain) {
  return plain.map((layer) => ({ ...layer, elements: layer.elements.map(toElement) }));
}

/** LayerState[] → plain layers. */
export function fromLayers(layers) {
  return layers.map((layer) => ({
    className: layer.className,
    stored: layer.stored,
    ...(layer.range === undefined ? {} : { range: [...layer.range] }),
    meta: [...layer.meta],
    elements: layer.elements.map(fromElement),
    ...(layer.parts === undefined ? {} : { parts: layer.parts }),
    ...(layer.rows === undefined ? {} : { rows: layer.rows }),
  }));
}

/** One layer of `size` payload bytes, all `value`. */
export function block(value, size = 64) {
  return [{ className: 'ArraysCache', stored: 'whole', meta: [], elements: [tensor('U8', [size], new Uint8Array(size).fill(value))] }];
}

/** The value of a layer that `block` made. */
export function fillOf(plain) {
  return plain[0].elements[0].bytes[0];
}
