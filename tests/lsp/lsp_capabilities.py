"""What the tests' editor can do."""

from __future__ import annotations

from typing import Any

# What a modern editor says it can do.
CAPABILITIES: dict[str, Any] = {
    "general": {"positionEncodings": ["utf-16"]},
    "workspace": {
        "applyEdit": True,
        "configuration": True,
        "workspaceEdit": {"documentChanges": True, "resourceOperations": ["create", "rename"]},
        "didChangeConfiguration": {"dynamicRegistration": True},
        "didChangeWatchedFiles": {"dynamicRegistration": True},
        "inlayHint": {"refreshSupport": True},
        "codeLens": {"refreshSupport": True},
        "semanticTokens": {"refreshSupport": True},
        "inlineValue": {"refreshSupport": True},
        "symbol": {"dynamicRegistration": False},
    },
    "textDocument": {
        "synchronization": {"didSave": True},
        "publishDiagnostics": {
            "relatedInformation": True,
            "tagSupport": {"valueSet": [1, 2]},
            "codeDescriptionSupport": True,
            "dataSupport": True,
            "versionSupport": True,
        },
        "hover": {"contentFormat": ["markdown", "plaintext"]},
        "completion": {
            "completionItem": {
                "snippetSupport": True,
                "documentationFormat": ["markdown", "plaintext"],
                "labelDetailsSupport": True,
                "insertReplaceSupport": True,
                "resolveSupport": {"properties": ["documentation", "detail"]},
            },
            "contextSupport": True,
        },
        "signatureHelp": {
            "signatureInformation": {
                "documentationFormat": ["markdown", "plaintext"],
                "parameterInformation": {"labelOffsetSupport": True},
                "activeParameterSupport": True,
            },
        },
        "codeAction": {
            "codeActionLiteralSupport": {
                "codeActionKind": {"valueSet": ["quickfix", "refactor", "source", "source.fixAll"]}
            },
            "isPreferredSupport": True,
            "dataSupport": True,
        },
        "documentSymbol": {"hierarchicalDocumentSymbolSupport": True},
        "rename": {"prepareSupport": True},
        "foldingRange": {"lineFoldingOnly": False},
        "diagnostic": {"relatedDocumentSupport": False},
        "linkedEditingRange": {},
        "inlayHint": {},
        "inlineValue": {},
        "definition": {"linkSupport": True},
        "typeDefinition": {"linkSupport": True},
        "semanticTokens": {
            "requests": {"full": {"delta": True}, "range": True},
            "tokenTypes": [],
            "tokenModifiers": [],
            "formats": ["relative"],
        },
    },
}
