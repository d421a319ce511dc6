/** What tidemark_mlx.node exports: the signatures of the lambdas in native/mlx/, one block per file there. */

import type { Device, Dtype, Operand, Shape, Stream, Tensor, TensorStatus } from './types.ts';

type List = readonly number[];
type Maybe = Tensor | null;
type Unary = (a: Tensor, s: Stream) => Tensor;
type Binary = (a: Operand, b: Operand, s: Stream) => Tensor;
type Reduction = (a: Tensor, axes: List | null, keepdims: boolean, s: Stream) => Tensor;
type ArgReduction = (a: Tensor, axis: number | null, keepdims: boolean, s: Stream) => Tensor;

type UnaryName =
  | 'neg'
  | 'exp'
  | 'expm1'
  | 'log'
  | 'log1p'
  | 'log2'
  | 'sigmoid'
  | 'square'
  | 'sqrt'
  | 'rsqrt'
  | 'reciprocal'
  | 'tanh'
  | 'erf'
  | 'abs'
  | 'sign'
  | 'cos'
  | 'sin'
  | 'floor'
  | 'ceil'
  | 'round'
  | 'logicalNot'
  | 'isfinite'
  | 'isnan'
  | 'silu'
  | 'softplus';

type BinaryName =
  | 'add'
  | 'sub'
  | 'mul'
  | 'div'
  | 'floorDivide'
  | 'remainder'
  | 'power'
  | 'logaddexp'
  | 'maximum'
  | 'minimum'
  | 'equal'
  | 'notEqual'
  | 'less'
  | 'lessEqual'
  | 'greater'
  | 'greaterEqual'
  | 'logicalAnd'
  | 'logicalOr'
  | 'bitwiseAnd'
  | 'bitwiseOr'
  | 'leftShift'
  | 'rightShift';

type ReductionName = 'sum' | 'prod' | 'max' | 'min' | 'mean' | 'variance' | 'logsumexp' | 'all' | 'any';

/** Which BLAS serves float32 matmul on CPU. */
export interface BlasInfo {
  library: 'openblas' | 'reference' | 'accelerate';
  threads: number;
  config?: string;
  core?: string;
}

export interface NativeMlx
  extends Record<UnaryName, Unary>,
    Record<BinaryName, Binary>,
    Record<ReductionName, Reduction>,
    Record<'argmax' | 'argmin', ArgReduction> {
  setErrorFactory(make: (code: string, message: string) => Error): void;
  mlxVersion(): string;
  builtVersion(): string;

  // ops_creation.cc, bytes.cc, files.cc
  zeros(shape: Shape, dtype: Dtype, s: Stream): Tensor;
  full(shape: Shape, value: number, dtype: Dtype, s: Stream): Tensor;
  scalar(value: number, dtype: Dtype): Tensor;
  arange(start: number, stop: number, step: number, dtype: Dtype, s: Stream): Tensor;
  fromInts(values: Int32Array, shape: Shape): Tensor;
  fromBytes(bytes: Uint8Array, shape: Shape, dtype: Dtype): Tensor;
  loadTensor(path: string, byteOffset: number, byteLength: number, shape: Shape, dtype: Dtype): Tensor;
  readBytes(t: Tensor, from: number, target: Uint8Array): void;
  readMany(pieces: Uint8Array, target: Uint8Array): void;
  toFloat32Array(t: Tensor): Float32Array;
  toInt32Array(t: Tensor): Int32Array;
  itemNumber(t: Tensor): number;
  registerHostMemory(view: Uint8Array): boolean;
  unregisterHostMemory(view: Uint8Array): void;

  // ops_elementwise.cc
  where(condition: Tensor, a: Operand, b: Operand, s: Stream): Tensor;
  clip(a: Tensor, low: number | null, high: number | null, s: Stream): Tensor;

  // ops_reduction.cc
  softmax(a: Tensor, axes: List, precise: boolean, s: Stream): Tensor;
  cumsum(a: Tensor, axis: number, reverse: boolean, inclusive: boolean, s: Stream): Tensor;
  cumprod(a: Tensor, axis: number, reverse: boolean, inclusive: boolean, s: Stream): Tensor;
  sort(a: Tensor, axis: number, s: Stream): Tensor;
  argsort(a: Tensor, axis: number, s: Stream): Tensor;
  partition(a: Tensor, kth: number, axis: number, s: Stream): Tensor;
  argpartition(a: Tensor, kth: number, axis: number, s: Stream): Tensor;
  topk(a: Tensor, k: number, axis: number, s: Stream): Tensor;

  // ops_shape.cc
  reshape(a: Tensor, shape: Shape, s: Stream): Tensor;
  flatten(a: Tensor, startAxis: number, endAxis: number, s: Stream): Tensor;
  unflatten(a: Tensor, axis: number, shape: Shape, s: Stream): Tensor;
  transpose(a: Tensor, axes: List | null, s: Stream): Tensor;
  swapaxes(a: Tensor, axis1: number, axis2: number, s: Stream): Tensor;
  moveaxis(a: Tensor, from: number, to: number, s: Stream): Tensor;
  expandDims(a: Tensor, axes: List, s: Stream): Tensor;
  squeeze(a: Tensor, axes: List | null, s: Stream): Tensor;
  broadcastTo(a: Tensor, shape: Shape, s: Stream): Tensor;
  concatenate(arrays: readonly Tensor[], axis: number, s: Stream): Tensor;
  stack(arrays: readonly Tensor[], axis: number, s: Stream): Tensor;
  splitParts(a: Tensor, parts: number, axis: number, s: Stream): Tensor[];
  splitAt(a: Tensor, indices: List, axis: number, s: Stream): Tensor[];
  repeat(a: Tensor, count: number, axis: number, s: Stream): Tensor;
  tile(a: Tensor, counts: List, s: Stream): Tensor;
  pad(a: Tensor, axes: List, low: List, high: List, value: number, s: Stream): Tensor;
  tril(a: Tensor, k: number, s: Stream): Tensor;
  triu(a: Tensor, k: number, s: Stream): Tensor;
  contiguous(a: Tensor, s: Stream): Tensor;
  copy(a: Tensor, s: Stream): Tensor;
  astype(a: Tensor, dtype: Dtype, s: Stream): Tensor;
  view(a: Tensor, dtype: Dtype, s: Stream): Tensor;
  depends(inputs: readonly Tensor[], dependencies: readonly Tensor[], s: Stream): Tensor[];

  // ops_indexing.cc
  slice(a: Tensor, start: List, stop: List, strides: List | null, s: Stream): Tensor;
  sliceUpdate(a: Tensor, update: Tensor, start: List, stop: List, strides: List | null, s: Stream): Tensor;
  sliceAt(a: Tensor, start: Tensor, axes: List, size: Shape, s: Stream): Tensor;
  sliceUpdateAt(a: Tensor, update: Tensor, start: Tensor, axes: List, s: Stream): Tensor;
  take(a: Tensor, indices: Tensor, axis: number, s: Stream): Tensor;
  takeAlongAxis(a: Tensor, indices: Tensor, axis: number, s: Stream): Tensor;
  putAlongAxis(a: Tensor, indices: Tensor, values: Operand, axis: number, s: Stream): Tensor;
  scatterAddAxis(a: Tensor, indices: Tensor, values: Tensor, axis: number, s: Stream): Tensor;

  // ops_linear.cc
  matmul(a: Tensor, b: Tensor, s: Stream): Tensor;
  addmm(c: Tensor, a: Tensor, b: Tensor, alpha: number, beta: number, s: Stream): Tensor;
  einsum(subscripts: string, operands: readonly Tensor[], s: Stream): Tensor;
  outer(a: Tensor, b: Tensor, s: Stream): Tensor;
  conv1d(input: Tensor, weight: Tensor, stride: number, padding: number, dilation: number, groups: number, s: Stream): Tensor;
  triInv(a: Tensor, upper: boolean, s: Stream): Tensor;
  quantizedMatmul(x: Tensor, w: Tensor, scales: Tensor, biases: Maybe, transpose: boolean, groupSize: number, bits: number, mode: string, s: Stream): Tensor;
  quantize(w: Tensor, groupSize: number, bits: number, mode: string, s: Stream): Tensor[];
  dequantize(w: Tensor, scales: Tensor, biases: Maybe, groupSize: number, bits: number, mode: string, dtype: Dtype | null, s: Stream): Tensor;
  gatherMm(a: Tensor, b: Tensor, lhs: Maybe, rhs: Maybe, sorted: boolean, s: Stream): Tensor;
  gatherQmm(
    x: Tensor,
    w: Tensor,
    scales: Tensor,
    biases: Maybe,
    lhs: Maybe,
    rhs: Maybe,
    transpose: boolean,
    groupSize: number,
    bits: number,
    mode: string,
    sorted: boolean,
    s: Stream,
  ): Tensor;

  // ops_fast.cc
  rmsNorm(x: Tensor, weight: Maybe, eps: number, s: Stream): Tensor;
  layerNorm(x: Tensor, weight: Maybe, bias: Maybe, eps: number, s: Stream): Tensor;
  rope(x: Tensor, dims: number, traditional: boolean, base: number | null, scale: number, offset: Operand, freqs: Maybe, s: Stream): Tensor;
  sdpa(q: Tensor, k: Tensor, v: Tensor, scale: number, mode: string, mask: Maybe, sinks: Maybe, s: Stream): Tensor;
  gatedDeltaUpdate(q: Tensor, k: Tensor, v: Tensor, gates: Tensor, beta: Tensor, state: Maybe, mask: Maybe, s: Stream): Tensor[];

  // ops_random.cc
  randomKey(seed: number): Tensor;
  randomSplit(key: Tensor, count: number, s: Stream): Tensor;
  randomUniform(low: number, high: number, shape: Shape, dtype: Dtype, key: Tensor, s: Stream): Tensor;
  randomNormal(shape: Shape, dtype: Dtype, key: Tensor, s: Stream): Tensor;
  randomCategorical(logits: Tensor, axis: number, key: Tensor, s: Stream): Tensor;

  // lifetime.cc
  openScope(): number;
  closeScope(depth: number): void;
  keep(t: Tensor): void;
  retain(t: Tensor): void;
  release(t: Tensor): void;
  /** Handles as float64. */
  releaseMany(handles: Uint8Array): void;
  handleCount(): number;

  // control.cc
  evaluate(tensors: readonly Tensor[]): void;
  asyncEvaluate(tensors: readonly Tensor[]): void;
  wait(t: Tensor): void;
  status(t: Tensor): TensorStatus;
  synchronize(s: Stream): void;
  shapeOf(t: Tensor): number[];
  dtypeOf(t: Tensor): Dtype;
  nbytes(t: Tensor): number;
  bufferAddress(t: Tensor): number;

  // streams.cc
  newStream(device: Device): Stream;
  setEngineStream(s: Stream): void;
  newModelStream(device: Device): Stream;
  defaultStreams(): Stream[];
  defaultStream(device: Device): Stream;
  setDefaultStream(s: Stream): void;
  setDefaultDevice(device: Device): void;
  gpuAvailable(): boolean;
  liveStreams(): Stream[];
  clearStreams(): void;
  drainThread(): void;
  foreignStreamOps(): number;
  streamIndex(s: Stream): number;
  deviceInfo(device: Device): Record<string, string | number>;

  // memory.cc, blas.cc
  activeBytes(): number;
  peakBytes(): number;
  resetPeakBytes(): void;
  cacheBytes(): number;
  memoryLimit(): number;
  setMemoryLimit(bytes: number): number;
  setCacheLimit(bytes: number): number;
  setWiredLimit(bytes: number): number;
  clearCache(): void;
  blasInfo(): BlasInfo;
  setBlasThreads(count: number): boolean;
  getBlasThreads(): number;

  // leases.cc
  leaseOpen(pieces: Uint8Array, target: Uint8Array): number;
  leaseCopy(lease: number, target: Uint8Array, most: number): number;
  leaseDrop(lease: number): boolean;
  leaseCount(): number;

  // test_ops.cc, only with TIDEMARK_TEST_OPS=1
  testFailWhenScheduled?(a: Tensor, s: Stream): Tensor;
  testFailOnStream?(a: Tensor, s: Stream): Tensor;
  testDelay?(a: Tensor, ms: number, s: Stream): Tensor;
  testBlock?(ms: number): void;
  testLoadSafetensors?(path: string, name: string, s: Stream): Tensor;
  testWatchClears?(s: Stream): void;
  testInFlightAtClears?(): number[];
  testInFlight?(s: Stream): number;
  testSynchronizeDefault?(): Stream;
  testThrow?(text: string): void;
}
