-- Asks the language server what a user would, and writes down what comes.
local out = {}
local bufnr = vim.api.nvim_get_current_buf()

local function wait(what, condition)
  assert(vim.wait(150000, condition, 20), 'no ' .. what)
end

local function at(word, offset)
  local text = table.concat(vim.api.nvim_buf_get_lines(bufnr, 0, -1, true), '\n')
  local start = assert(text:find(word, 1, true), word) - 1 + (offset or 0)
  local before = text:sub(1, start)
  local _, line = before:gsub('\n', '')
  return { line = line, character = #before:match('[^\n]*$') }
end

local function ask(method, params)
  params.textDocument = vim.lsp.util.make_text_document_params(bufnr)
  local answers = assert(vim.lsp.buf_request_sync(bufnr, method, params, 60000), method)
  local _, answer = next(answers)
  assert(answer and not answer.err, method .. ': ' .. vim.inspect(answer))
  return answer.result
end

local ok, err = pcall(function()
  wait('diagnostics', function() return #vim.diagnostic.get(bufnr) > 0 end)
  out.diagnostics = {}
  for _, d in ipairs(vim.diagnostic.get(bufnr)) do
    table.insert(out.diagnostics, d.lnum + 1 .. ': ' .. d.message)
  end

  -- Mending the word clears the message.
  local place = at('sofmax', 3)
  vim.api.nvim_buf_set_text(bufnr, place.line, place.character, place.line, place.character, { 't' })
  wait('clean text', function() return #vim.diagnostic.get(bufnr) == 0 end)

  out.hover = ask('textDocument/hover', { position = at('softmax') }).contents.value
  local definition = ask('textDocument/definition', { position = at('information(p)') })
  definition = definition[1] or definition
  out.definition = (definition.targetSelectionRange or definition.range).start.line + 1

  -- Completion as a user calls for it.
  vim.api.nvim_win_set_cursor(0, { at('mul(scores').line + 1, at('mul(scores', 4).character })
  out.completion = {}
  local found = ask('textDocument/completion', { position = at('mul(scores', 4) })
  for _, item in ipairs(found.items or found) do
    table.insert(out.completion, item.label)
  end

  if vim.lsp.inlay_hint then
    wait('hints', function() return #vim.lsp.inlay_hint.get({ bufnr = bufnr }) > 0 end)
    out.hints = {}
    for _, h in ipairs(vim.lsp.inlay_hint.get({ bufnr = bufnr })) do
      table.insert(out.hints, h.inlay_hint.label)
    end
  end

  out.lenses = {}
  for _, lens in ipairs(ask('textDocument/codeLens', {})) do
    if lens.command then
      out.lenses[lens.command.title] = vim.lsp.commands[lens.command.command] ~= nil
    end
  end

  if vim.lsp.buf.format then
    vim.lsp.buf.format({ bufnr = bufnr, timeout_ms = 60000 })
  else
    vim.lsp.buf.formatting_sync(nil, 60000)
  end
  out.text = table.concat(vim.api.nvim_buf_get_lines(bufnr, 0, -1, true), '\n')

  -- A lens opens a terminal.
  local graph = { uri = vim.uri_from_bufnr(bufnr), graph = 'information' }
  vim.lsp.commands['opstep.plan']({ arguments = { graph } })
  local terminal = vim.api.nvim_get_current_buf()
  local function shown()
    return table.concat(vim.api.nvim_buf_get_lines(terminal, 0, -1, true), '\n')
  end
  wait('end of the command', function() return shown():find('Process exited', 1, true) end)
  out.terminal = shown()
end)
if not ok then
  out.error = tostring(err)
end
local file = assert(io.open(vim.env.OUT, 'w'))
file:write(vim.json and vim.json.encode(out) or vim.fn.json_encode(out))
file:close()
vim.cmd('qa!')
