"""A namespace that pydevd's own folder shares: both parts are looked through."""

import pkgutil

__path__ = pkgutil.extend_path(__path__, __name__)
