-- Debugs a graph through nvim-dap as a user would, and writes down where it stands.
local out = { stops = {} }
local dap = require('dap')
local stops = 0

local function wait(what, condition)
  assert(vim.wait(150000, condition, 20), 'no ' .. what)
end

-- The line of the topmost frame once the session has stopped again.
local function stopped(what, act)
  local before = stops
  act()
  wait('stop after ' .. what, function()
    local session = dap.session()
    return stops > before and session and session.current_frame
  end)
  local frame = dap.session().current_frame
  table.insert(out.stops, what .. ': ' .. frame.name .. ' ' .. frame.line)
end

local function request(command, arguments)
  local done, result = false, nil
  dap.session():request(command, arguments, function(err, response)
    done, result = true, response
    assert(not err, vim.inspect(err))
  end)
  wait(command, function() return done end)
  return result
end

local ok, err = pcall(function()
  -- The frame is known some time behind the stop.
  dap.listeners.after.stackTrace['test'] = function() stops = stops + 1 end
  local ended = false
  dap.listeners.after.event_terminated['test'] = function() ended = true end

  stopped('entry', function() dap.run(dap.configurations.opg[1]) end)
  stopped('step over', dap.step_over)
  stopped('step over', dap.step_over)
  stopped('step back', dap.step_back)
  stopped('step over', dap.step_over)
  stopped('step into', dap.step_into)
  stopped('step out', dap.step_out)
  stopped('reverse continue', dap.reverse_continue)
  vim.api.nvim_win_set_cursor(0, { 12, 0 })
  dap.set_breakpoint()
  wait('breakpoint', function()
    local _, found = next(require('dap.breakpoints').get())
    return found and found[1] and found[1].state and found[1].state.verified
  end)
  stopped('continue', dap.continue)

  out.variables = {}
  local frame = dap.session().current_frame
  for _, scope in ipairs(request('scopes', { frameId = frame.id }).scopes) do
    local found = request('variables', { variablesReference = scope.variablesReference })
    for _, variable in ipairs(found.variables) do
      out.variables[variable.name] = variable.value
    end
  end
  out.evaluated = request('evaluate', { expression = 'max(p)', frameId = frame.id, context = 'watch' }).result
  dap.clear_breakpoints()
  dap.continue()
  wait('end', function() return ended end)
end)
if not ok then
  out.error = tostring(err)
end
local file = assert(io.open(vim.env.OUT, 'w'))
file:write(vim.json.encode(out))
file:close()
vim.cmd('qa!')
