"""What the servers for editors (`dap`, `lsp`) share: messages on a stream, how clients connect,
views of tensors as JSON. Nothing here knows either protocol's requests.
"""
