// Runs in the page of the Perfetto UI, before the UI, where a view of an editor has it in a frame.
// It opens the trace, tells the page around it which slice was selected, and selects slices for it.
//
// Messages are objects with `opstep`, what they are about:
//
//   from around   hello {dark}                 who we speak with from now on
//                 theme {dark}
//                 find {request, file, line}   asks for the slices of a line
//                 select {id, zoom}            selects a slice; `selected` has `echo` then
//   to it         ready                        the trace is loaded
//                 selected {slice, echo}       slice: id, name, category, ts, dur, args
//                 found {request, slices}      slices: id, name, ts, dur, run, step; by time
//                 failed {request, text}
//                 key {…}                      a key that the UI has no use for
//
// Times are texts: nanoseconds go beyond what a number holds.
'use strict';
(() => {
  const LOOK_MS = 80; // between two looks at what is selected
  const MOST = 10000; // slices of a line that are told of
  const around = window.parent;
  let origin; // of the page around us, once it has said hello
  let echo; // the slice that was selected because we were asked to
  let last; // the selection that was told of
  let trace; // whose selection that was

  history.replaceState(null, '', `#${opstepRoute}`);

  const tell = (opstep, more) => {
    if (origin !== undefined) around.postMessage({ opstep, ...more }, origin);
  };

  // The UI takes the trace from the root of its host, which is somebody else's behind a proxy.
  const fetched = window.fetch;
  window.fetch = (what, ...more) =>
    what === '/vizviewer_info' ? new Promise(() => {}) : fetched.call(window, what, ...more);

  // Before the UI's own listener, which takes what comes for a trace and asks whether to trust it.
  window.addEventListener('message', (event) => {
    if (event.source !== around || typeof event.data?.opstep !== 'string') return;
    event.stopImmediatePropagation();
    if (event.data.opstep === 'hello') {
      origin = event.origin;
      last = undefined;
    }
    if (event.origin === origin) answer(event.data);
  });

  const theme = (dark) => window.app?.settings?.get('theme')?.set(dark ? 'dark' : 'light');

  async function answer(asked) {
    try {
      if (asked.opstep === 'hello' || asked.opstep === 'theme') {
        wanted.dark = Boolean(asked.dark);
        theme(wanted.dark);
        if (asked.opstep === 'hello' && trace !== undefined) tell('ready');
      } else if (asked.opstep === 'find') {
        tell('found', { request: asked.request, slices: await find(asked.file, asked.line, asked.text) });
      } else if (asked.opstep === 'select') {
        await select(asked.id, asked.zoom);
      }
    } catch (error) {
      tell('failed', { request: asked.request, text: String(error?.message ?? error) });
    }
  }
  const wanted = { dark: false };

  const engine = () => {
    if (trace === undefined) throw new Error('the trace is still being loaded');
    return trace.engine;
  };
  const text = (value) => (typeof value === 'bigint' ? String(value) : value);
  const quoted = (value) => `'${String(value).replaceAll("'", "''")}'`;
  const argument = (name) => `extract_arg(arg_set_id, 'debug.${name}')`;

  /** Rows of a question as objects. The kinds of the columns are those of the first row's values. */
  async function rows(sql) {
    const result = await engine().query(sql);
    const columns = result.columns();
    const found = [];
    for (const row = result.iter({}); row.valid(); row.next()) {
      found.push(Object.fromEntries(columns.map((name) => [name, text(row.get(name))])));
    }
    return found;
  }

  /**
   * The slices of a line of a file. A trace has the file's name as the run was given it: relative.
   * Lines may have moved since: what stands on the line now is looked for first, next to it.
   */
  async function find(file, line, text) {
    const path = String(file).replaceAll('\\', '/');
    const ops = await rows(
      `select distinct ${argument('file')} as file, ${argument('line')} as line,
       ${argument('statement')} as statement, ${argument('attrs')} as attrs
       from slice where category in ('op', 'control')`,
    );
    const known = ops.flatMap(statementsOf);
    const here = known.filter((row) => row.file && sameFile(path, row.file));
    const now = bare(text ?? '');
    const moved = here.filter((row) => row.statement && now.startsWith(bare(row.statement)));
    const off = (row) => Math.abs(Number(row.line) - Number(line));
    const least = Math.min(...moved.map(off));
    const places = moved.length
      ? moved.filter((row) => off(row) === least)
      : here.filter((row) => Number(row.line) === Number(line));
    if (places.length === 0) return [];
    const one = ({ op }) =>
      `(${argument('line')} = ${Number(op.line)} and ${argument('file')} = ${quoted(op.file)}
        and coalesce(${argument('attrs')}, '') = ${quoted(op.attrs ?? '')})`;
    return rows(
      `select id, name, ts, dur, ${argument('run')} as run, ${argument('step')} as step from slice
       where category in ('op', 'control') and (${places.map(one).join(' or ')})
       order by ts, id limit ${MOST}`,
    );
  }

  /** What stands in files of an op: its statement, or those of the ops that run as one. */
  function statementsOf(op) {
    const { ops, places } = op.attrs ? JSON.parse(op.attrs) : {};
    const texts = (list) => Array.isArray(list) && list.every((one) => typeof one === 'string');
    if (!texts(ops) || !texts(places) || ops.length !== places.length) return [{ ...op, op }];
    return places.map((place, k) => {
      const end = place.lastIndexOf(':');
      return { file: place.slice(0, end), line: place.slice(end + 1), statement: ops[k], op };
    });
  }

  // Without what only lays a statement out.
  const bare = (statement) => statement.replace(/[\s,]+/g, '');

  function sameFile(path, name) {
    const parts = name.replaceAll('\\', '/').split('/').filter((part) => part && part !== '.');
    const known = parts.slice(parts.lastIndexOf('..') + 1).join('/');
    return path === name || path === known || path.endsWith(`/${known}`);
  }

  async function select(id, zoom) {
    const slice = await described(id);
    echo = slice.id;
    await trace.selection.selectSqlEvent('slice', Number(id), {
      scrollToSelection: true,
      switchToCurrentSelectionTab: true,
    });
    if (zoom) {
      const start = BigInt(slice.ts);
      const end = start + BigInt(slice.dur > 0 ? slice.dur : 1);
      trace.scrollTo({ time: { start, end, viewPercentage: 0.1 } });
    }
  }

  async function described(id) {
    const found = await rows(
      `select id, name, category, ts, dur, arg_set_id from slice where id = ${Number(id)}`,
    );
    if (found.length === 0) throw new Error(`there is no slice ${id}`);
    const { arg_set_id: set, ...slice } = found[0];
    const args = {};
    if (set !== null) {
      for (const row of await rows(`select key, display_value from args where arg_set_id = ${set}`)) {
        args[row.key.replace(/^debug\./, '')] = row.display_value;
      }
    }
    return { ...slice, args };
  }

  /** What was selected is looked at, not listened for: the UI has no event for it. */
  async function look() {
    const now = window.app?.trace;
    if (now === undefined || origin === undefined) return;
    if (now !== trace && !window.app.isLoadingTrace) {
      if (trace === undefined) theme(wanted.dark);
      trace = now;
      tell('ready');
    }
    const selection = now.selection.selection;
    if (selection === last) return;
    const none = last === undefined || last.kind !== 'track_event';
    last = selection;
    if (selection?.kind !== 'track_event') {
      if (!none) tell('selected', { slice: null, echo: false });
      return;
    }
    const slice = await described(selection.eventId).catch(() => undefined);
    // Tracks of other tables, such as counters, number their events by themselves.
    if (slice === undefined || BigInt(slice.ts) !== BigInt(selection.ts)) return;
    const echoed = slice.id === echo;
    echo = undefined;
    tell('selected', { slice, echo: echoed });
  }
  setInterval(() => look().catch((error) => tell('failed', { text: String(error) })), LOOK_MS);

  // Opens the trace as soon as the UI is there.
  const opening = setInterval(() => {
    if (typeof window.app?.openTraceFromUrl !== 'function') return;
    clearInterval(opening);
    theme(wanted.dark);
    window.app.openTraceFromUrl(new URL('localtrace', document.baseURI.split('#')[0]).href);
  }, 20);

  // Keys that the UI leaves alone are the editor's: a frame would swallow them.
  window.addEventListener('keydown', (event) => {
    const ours = event.ctrlKey || event.metaKey || event.altKey || /^F\d+$/.test(event.key);
    if (event.defaultPrevented || !ours) return;
    const { key, code, keyCode, ctrlKey, shiftKey, altKey, metaKey } = event;
    tell('key', { key, code, keyCode, ctrlKey, shiftKey, altKey, metaKey });
  });
})();
