/** What of the Python extension's API opstep uses: see its `PythonExtension` in src/python.ts. */

const vscode = require("vscode");

exports.activate = (context) => {
  const changed = new vscode.EventEmitter();
  const path = (resource) =>
    vscode.workspace.getConfiguration("python", resource).get("defaultInterpreterPath");
  context.subscriptions.push(
    changed,
    vscode.workspace.onDidChangeConfiguration((event) => {
      if (event.affectsConfiguration("python")) {
        changed.fire({ path: path(), resource: undefined });
      }
    }),
  );
  return {
    environments: {
      getActiveEnvironmentPath: (resource) => ({ id: path(resource), path: path(resource) }),
      resolveEnvironment: async (environment) => {
        const file = typeof environment === "string" ? environment : environment.path;
        return file ? { path: file, executable: { uri: vscode.Uri.file(file) } } : undefined;
      },
      onDidChangeActiveEnvironmentPath: changed.event,
    },
  };
};
