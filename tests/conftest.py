"""Puts this folder on the path, so that tests in every folder below can import its helpers."""

import signal

# Shells start what runs in the background with Ctrl-C ignored, which programs inherit: tests that
# press it would wait for ever.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
