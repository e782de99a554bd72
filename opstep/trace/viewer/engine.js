// Perfetto's trace processor behind HTTP, as the `perfetto` Python package expects it.
//
//   node engine.js FOLDER     FOLDER holds engine_bundle.js and its wasm files
//
// Prints the port that it listens on (127.0.0.1), and ends when its standard input does: with
// whoever started it, however that ended. The engine is made for a web worker of a browser. Here it
// gets a worker of its own, so that this thread can go on listening while a query runs.
'use strict';
const { Worker, isMainThread, parentPort, workerData } = require('node:worker_threads');

// Most questions are answered before V8 would have optimised the engine's code, which takes longer
// than they do: it waits until code is a hundred times as hot as usual. A V8 that does not know the
// flag goes on without it.
require('node:v8').setFlagsFromString('--wasm-tiering-budget=200000000');

// --- protobuf: as much as the engine's messages need ---

function varint(n) {
  const out = [];
  for (; n > 127; n = Math.floor(n / 128)) out.push((n % 128) | 128);
  return Buffer.from([...out, n]);
}
const number = (field, n) => Buffer.concat([varint(field * 8), varint(n)]);
const bytes = (field, b) => Buffer.concat([varint(field * 8 + 2), varint(b.length), b]);

function* fields(b) {
  let at = 0;
  const read = () => {
    let n = 0, scale = 1, byte;
    do { byte = b[at++]; n += (byte & 127) * scale; scale *= 128; } while (byte & 128);
    return n;
  };
  while (at < b.length) {
    const tag = read(), wire = tag % 8;
    if (wire === 0) { yield [Math.floor(tag / 8), read()]; continue; }
    const size = wire === 2 ? read() : wire === 1 ? 8 : 4;
    yield [Math.floor(tag / 8), b.subarray(at, at += size)];
  }
}

// Where the first field of bytes ends, which has a length; 0 where not all of it is there.
function firstEnd(b) {
  let size = 0, scale = 1, at = 1;
  do {
    if (at >= b.length) return 0;
    size += (b[at] & 127) * scale;
    scale *= 128;
  } while (b[at++] & 128);
  return at + size <= b.length ? at + size : 0;
}

// --- the engine's calls (trace_processor.proto: TraceProcessorRpc) ---

const CALLS = {  // by route: TraceProcessorMethod, field of its arguments, field of its result
  '/status': [10, 0, 210],
  '/parse': [1, 101, 201],
  '/notify_eof': [2, 0, 212],
  '/query': [3, 103, 203],
};
const RPC_SEQ = 1, RPC_METHOD = 2, RPC_FATAL = 5, STREAM_MESSAGE = 1, ERROR = { '/query': 2 };
const MOST = 512 << 20;  // bytes of an answer

// --- the thread of the engine ---

function engine() {
  const fs = require('node:fs'), path = require('node:path');
  const self = globalThis;
  self.self = self;
  self.location = { href: 'http://localhost/' };
  self.WorkerGlobalScope = function () {};
  self.XMLHttpRequest = class {  // the bundle loads its wasm with synchronous requests
    open(_method, url) { this.url = url; }
    send() {
      const file = fs.readFileSync(path.join(workerData, path.basename(this.url)));
      this.response = file.buffer.slice(file.byteOffset, file.byteOffset + file.length);
      this.status = 200;
    }
  };
  console.log = console.warn = console.error;  // standard output is for the port
  // Where there is a `process` the bundle takes itself for a program of Node's.
  new Function('process', fs.readFileSync(path.join(workerData, 'engine_bundle.js'), 'utf8'))();

  let reply = () => {};
  const port = { postMessage: (data) => reply(Buffer.from(data)) };
  self.onmessage({ data: port });

  let calls = 0;
  function call(route, body, take) {
    const [method, given, result] = CALLS[route];
    const request = [number(RPC_SEQ, calls++), number(RPC_METHOD, method)];
    if (given) request.push(bytes(given, body));
    let rest = Buffer.alloc(0);  // a message may be cut between two pieces
    reply = (piece) => {
      rest = Buffer.concat([rest, piece]);
      for (let end; (end = firstEnd(rest)) > 0; rest = rest.subarray(end))
        for (const [, message] of fields(rest.subarray(0, end)))
          for (const [field, value] of fields(message)) {
            if (field === RPC_FATAL) throw Error(String(value));
            if (field === result) take(value);  // parts of the answer; joined, they are it
          }
    };
    port.onmessage({ data: new Uint8Array(bytes(STREAM_MESSAGE, Buffer.concat(request))) });
  }

  let unloadable = null;  // the client does not look at what /notify_eof answers: queries tell
  parentPort.on('message', ([route, body]) => {
    try {
      call(route, Buffer.from(body), (part) => {
        if (route === '/notify_eof') {
          for (const [field, value] of fields(part)) if (field === 1) unloadable = String(value);
        } else if (!(route === '/query' && unloadable)) parentPort.postMessage({ part });
      });
      const error = route === '/query' ? unloadable : null;
      parentPort.postMessage({ done: true, error });
    } catch (error) {
      parentPort.postMessage({ done: true, error: error.message });
    }
  });

  // The bundle has compiled its wasm by now, and starts it in microtasks: before what is next here.
  setImmediate(() => call('/status', null, () => parentPort.postMessage({ started: true })));
}

// --- the thread that listens ---

function listen(folder) {
  const worker = new Worker(__filename, { workerData: folder });
  let finish = null, parts = [], size = 0, queue = Promise.resolve();

  worker.on('error', (error) => { console.error(error); process.exit(1); });
  worker.on('message', ({ started, part, done, error }) => {
    if (started) server.listen(0, '127.0.0.1', () => console.log(server.address().port));
    if (part) { parts.push(Buffer.from(part)); size += part.length; }
    if (size > MOST) return finish('the answer has more than 512 MiB: ask for less', true);
    if (done) finish(error);
  });

  const ask = (route, body) => new Promise((resolve) => {
    parts = [];
    size = 0;
    finish = (error, end) => {
      const failed = error ? bytes(ERROR[route] ?? 1, Buffer.from(error)) : null;
      resolve([failed ?? Buffer.concat(parts), end]);
    };
    worker.postMessage([route, body]);
  });

  const server = require('node:http').createServer((request, response) => {
    const { host, origin } = request.headers;
    // No web page asks here, under whatever name of this machine.
    const own = host === `127.0.0.1:${server.address().port}` && !origin;
    if (!own || !CALLS[request.url]) { response.writeHead(own ? 404 : 403).end(); return; }
    const body = [];
    request.on('data', (piece) => body.push(piece));
    request.on('end', () => {
      queue = queue.then(() => ask(request.url, Buffer.concat(body))).then(([answer, end]) => {
        response.writeHead(200, { 'Content-Length': answer.length });
        response.end(answer, () => { if (end) process.exit(1); });
      });
    });
  });
  // One client, that may think for long between two questions, and send much.
  server.keepAliveTimeout = server.requestTimeout = server.headersTimeout = 0;
  process.stdin.resume().on('end', () => process.exit(0)).on('error', () => process.exit(0));
}

if (isMainThread) listen(process.argv[2]); else engine();
